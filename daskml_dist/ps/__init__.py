"""The parameter server: layout, shards, and the state machine that serves them."""
