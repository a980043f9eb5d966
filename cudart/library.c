#include "library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

static char *copied(const char *text) {
  char *copy = malloc(strlen(text) + 1);
  return copy ? strcpy(copy, text) : NULL;
}

static void **pointer(const void *table, const library_function *f) { return (void **)((char *)table + f->at); }

char *library_open(void *table, const char *path, const library_function *functions, size_t count) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return copied(dlerror());
  *(void **)table = library;
  for (size_t i = 0; i < count; i++) *pointer(table, functions + i) = dlsym(library, functions[i].name);
  return NULL;
}

const char *library_lacks(const void *table, const library_function *functions, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!*pointer(table, functions + i) && !functions[i].optional) return functions[i].name;
  return NULL;
}

static const char *path_of(const void *table) {
  struct link_map *map = NULL;
  return dlinfo(*(void *const *)table, RTLD_DI_LINKMAP, &map) || !map ? NULL : map->l_name;
}

char *library_path(const void *table) {
  const char *path = path_of(table);
  return path && *path ? copied(path) : NULL;
}

void library_keep(void *table) {
  const char *path = path_of(table);
  void *again = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE) : NULL;
  if (again) dlclose(again);
}

void library_close(void *table) {
  void **library = table;
  if (*library) dlclose(*library);
  *library = NULL;
}
