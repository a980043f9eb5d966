// How shared libraries are loaded into tables of function pointers. A table is a structure that begins with the library's handle, a void pointer that is null while nothing is loaded.
#pragma once
#include <stddef.h>

// A function of a library and the place of its pointer in the table.
typedef struct library_function {
  const char *name;
  size_t at;
  int optional;
} library_function;

// library_open loads the library at path, whose names no other library sees, and looks its functions up; pointers to those that it does not have are null. Null when it worked; else the loader's message, to be freed.
char *library_open(void *table, const char *path, const library_function *functions, size_t count);
// library_lacks gives the first function without a pointer that is not optional; null if there is none.
const char *library_lacks(const void *table, const library_function *functions, size_t count);
// library_path gives where the loaded library lies, to be freed; null if the loader does not tell.
char *library_path(const void *table);
// library_keep has the library stay in memory, also after library_close: its threads, what it does at the end of the program's threads, and its work in streams, may outlive the last handle.
void library_keep(void *table);
// library_close gives the library back. Another call does nothing.
void library_close(void *table);
