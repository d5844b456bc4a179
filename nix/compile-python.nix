# The command that compiles every module under the directories it is given, once
# and for all: the bytecode is taken without a look at its source, whose time Nix
# changes. `-B` keeps the compiler's own imports from leaving bytecode of another
# kind first; one process and a fixed seed keep the output the same each time.
interpreter:
"env PYTHONHASHSEED=0 ${interpreter} -B -P -S -s -m compileall -f -q -j 1 --invalidation-mode unchecked-hash"
