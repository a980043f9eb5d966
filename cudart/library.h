// What the tables of function pointers share.
#pragma once
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// library_text copies a message for a caller who frees it.
static inline char *library_text(const char *text) {
  char *copy = malloc(strlen(text) + 1);
  return copy ? strcpy(copy, text) : NULL;
}

// library_open loads a shared library whose names no other library sees, with further flags of dlopen. Null when it worked; else the loader's message.
static inline char *library_open(void **library, const char *path, int flags) {
  *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | flags);
  return *library ? NULL : library_text(dlerror());
}
