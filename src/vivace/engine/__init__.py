"""Who runs next and what it costs: jobs, batches, pages and the scheduler. Integers and the standard library only."""
