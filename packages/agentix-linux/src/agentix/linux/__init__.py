"""What deployments and servers ask of the Linux kernel, written once."""
