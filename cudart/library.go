package cudart

/*
#include <stdlib.h>
#include "library.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// table is a C structure of a library's functions and what a library must be to be used through it.
type table struct {
	at        unsafe.Pointer // of the structure, see library.h
	functions []C.library_function
	least     int              // version
	version   func() int       // of the library that is loaded, which may lack functions; 0 if it does not tell
	says      string           // what stands before the version in a message; "" is "is version"
	text      func(int) string // a version for people
}

// find loads the first library that fits and gives where it was found, see search, and its version.
func (t *table) find(names, directories []string) (path string, version int, err error) {
	path, err = search(names, directories, t.open)
	if err == nil {
		version = t.version()
	}
	return path, version, err
}

// open loads the library at path. One that does not fit is not loaded afterwards, and the error an unfitError.
func (t *table) open(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if wrong := C.library_open(t.at, name, &t.functions[0], C.size_t(len(t.functions))); wrong != nil {
		defer C.free(unsafe.Pointer(wrong))
		return errors.New(C.GoString(wrong))
	}
	reason := t.unfit()
	if reason == "" {
		return nil
	}
	e := &unfitError{path, reason}
	if at := C.library_path(t.at); at != nil {
		e.path = C.GoString(at)
		C.free(unsafe.Pointer(at))
	}
	C.library_close(t.at)
	return e
}

// unfit says why the library that is loaded cannot be used; empty if it can.
func (t *table) unfit() string {
	version, lacks := t.version(), C.GoString(C.library_lacks(t.at, &t.functions[0], C.size_t(len(t.functions))))
	says := t.says
	if says == "" {
		says = "is version"
	}
	switch {
	case version > 0 && version < t.least:
		return fmt.Sprintf("%s %s: %s is needed", says, t.text(version), t.text(t.least))
	case version > 0 && lacks != "":
		return fmt.Sprintf("%s %s and has no function %s", says, t.text(version), lacks)
	case lacks != "":
		return "has no function " + lacks
	case version <= 0:
		return "does not tell its version"
	}
	return ""
}

// libraryVersionText gives "2.21.5" for 22105, as NCCL and cuBLASLt number their versions.
func libraryVersionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100) }
