/* What a C program does before and after its own work: it takes its arguments, and ends. */
int main(int argc, char **argv) { return argc == 99 && argv[98][0]; }
