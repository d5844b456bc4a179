# Functions that the builds of the offline package set share.

# unpack_debian PACKAGE DIRECTORY
unpack_debian() {
    ar -p "$1" data.tar.xz | xz -dc | tar -x -C "$2"
}

# Succeeds for ELF files that are linked dynamically.
is_dynamic() {
    [ "$(head -c 4 "$1" | tail -c 3)" = ELF ] && patchelf --print-rpath "$1" >/dev/null 2>&1
}

# link_library FILE SEARCH_PATH
# DT_RPATH rather than DT_RUNPATH: it beats LD_LIBRARY_PATH, and it covers what
# a library loads at run time. Directories that serve the file nothing are left out.
link_library() {
    chmod u+w "$1"
    patchelf --force-rpath --set-rpath "$2" "$1"
    patchelf --force-rpath --shrink-rpath "$1"
}

# link_program FILE LOADER SEARCH_PATH
# A program keeps the whole search path: the C library loads libgcc_s when a
# thread ends, and finds it by the program's path.
link_program() {
    chmod u+w "$1"
    patchelf --set-interpreter "$2" --force-rpath --set-rpath "$3" "$1"
}

# require_libraries SEARCH_PATH FILE...
# Fails where a needed library is in none of the search path's directories.
require_libraries() {
    local directories file library
    directories=$(echo "$1" | tr : ' ')
    shift
    for file; do
        for library in $(patchelf --print-needed "$file"); do
            find $directories -maxdepth 1 -name "$library" | grep -q . || {
                echo "$file needs $library, which is not shipped" >&2
                return 1
            }
        done
    done
}

hexadecimal() {
    xxd -p "$@" | tr -d '\n'
}

# replace_bytes FILE OLD NEW
# OLD and NEW are printf formats of the same length. Fails where OLD is not there.
replace_bytes() {
    local old new
    old=$(printf "$2" | hexadecimal)
    new=$(printf "$3" | hexadecimal)
    hexadecimal "$1" >content
    grep -q "$old" content || {
        echo "$1 does not hold $2" >&2
        return 1
    }
    sed "s/$old/$new/g" content | xxd -r -p >replaced
    cat replaced >"$1"
}
