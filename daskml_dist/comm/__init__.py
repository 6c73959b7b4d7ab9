"""Communication: transports to the servers, and collectives between trainers."""
