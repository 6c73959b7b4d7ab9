"""How bytes move: transports to the servers, and all-reduce between trainers."""
