"""Workers: the processes in which handlers run, and the pump's side of them."""
