"""XML at the edges of the pump: what is let in, how it is read, and how it is written."""
