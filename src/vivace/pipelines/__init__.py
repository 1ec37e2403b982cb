"""What one step means for each kind of job."""
