"""From one vector per token to one vector per text."""
