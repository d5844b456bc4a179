"""AgentServer: handlers, a message pump, and the organism that they make."""
