"""Language models: the endpoint, the audited peer in front of it, and the listener they make."""
