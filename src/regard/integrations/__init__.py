"""Other people's models through Regard."""
