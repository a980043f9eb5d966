package cudart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// unfitError is about a library that was loaded and cannot be used.
type unfitError struct{ path, reason string }

func (e *unfitError) Error() string { return e.path + " " + e.reason }

// errAbsent is wrapped when no file was found at all.
var errAbsent = errors.New("there is none")

// search gives the first path that open takes of a shared library, which may have several names, the best first. The first of the given directories that has it decides: what is wrong with that one is the error. Else the first
// that fits is taken, of each name: what the system's loader finds, and what that hides in the folders of LD_LIBRARY_PATH and in ldconfig's cache; then the folders of pip's nvidia packages and of WSL. The error names
// what was found, each with what is wrong with it, and where was looked; where nothing was found it wraps errAbsent.
func search(names, directories []string, open func(path string) error) (string, error) {
	given := map[string][]string{} // what their places answered, by name
	for _, dir := range directories {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if dir == "" {
				continue
			}
			err := open(path)
			if err == nil {
				return path, nil
			}
			if isFile(path) {
				return "", fmt.Errorf("%s; it is in a folder that was set, so no other is taken", told(path, err))
			}
			given[name] = append(given[name], told(path, err))
		}
	}
	var errs []error
	absent := true
	for _, name := range names {
		s := searching{name: name, open: open}
		path, ok := s.everywhere()
		if ok {
			return path, nil
		}
		what := "could not be loaded"
		if s.found {
			what, absent = "is there, but none that can be used", false
		}
		errs = append(errs, fmt.Errorf("%s %s (%s; pip's folders %s below %s: %d folders, and %s)", name, what, strings.Join(append(given[name], s.tried...), "; "), packagePattern, strings.Join(packageRoots(), ", "), len(packageDirectories())-1, wslDirectory))
	}
	err := errors.Join(errs...)
	if absent {
		err = absentError{err}
	}
	return "", err
}

// absentError is an error that wraps errAbsent and does not say it again.
type absentError struct{ error }

func (e absentError) Is(target error) bool { return target == errAbsent }

// searching is the search for one name.
type searching struct {
	name  string
	open  func(path string) error
	tried []string // what each place answered
	seen  []string // files that were tried
	found bool     // a file that cannot be used
}

func (s *searching) everywhere() (string, bool) {
	paths, place := os.Getenv("LD_LIBRARY_PATH"), "LD_LIBRARY_PATH, which is not set, and the system's cache"
	if paths != "" {
		place = fmt.Sprintf("LD_LIBRARY_PATH %q and the system's cache", paths)
	}
	err := s.open(s.name)
	if err == nil {
		return s.name, true
	}
	var unfit *unfitError
	if errors.As(err, &unfit) {
		s.found = true
		s.seen = append(s.seen, resolved(unfit.path))
	}
	s.tried = append(s.tried, told(place, err))
	var hidden []string // by what the loader has taken
	for _, dir := range filepath.SplitList(paths) {
		hidden = append(hidden, filepath.Join(dir, s.name))
	}
	if unfit != nil || slices.ContainsFunc(hidden, isFile) {
		hidden = append(hidden, cached(systemCache(), s.name)...)
	}
	for _, dir := range packageDirectories() {
		hidden = append(hidden, filepath.Join(dir, s.name))
	}
	for _, path := range hidden {
		if s.try(path) {
			return path, true
		}
	}
	return "", false
}

// try tries a file, if there is one that was not tried before.
func (s *searching) try(path string) bool {
	if !isFile(path) || slices.Contains(s.seen, resolved(path)) {
		return false
	}
	s.seen = append(s.seen, resolved(path))
	err := s.open(path)
	if err != nil {
		s.found = true
		s.tried = append(s.tried, told(path, err))
	}
	return err == nil
}

// told is what a place answered. An error that names the place itself, as the loader's text does, is not given it twice.
func told(place string, err error) string {
	text := err.Error()
	if strings.HasPrefix(text, place+" ") {
		return text
	}
	text = strings.TrimPrefix(text, place+": ")
	return place + ": " + text
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// resolved is the file itself, so that one with several names is tried once.
func resolved(path string) string {
	if file, err := filepath.EvalSymlinks(path); err == nil {
		return file
	}
	return path
}

// systemCache lists the libraries of the system's cache as ldconfig prints them; nothing where there is no ldconfig.
func systemCache() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, program := range []string{"/sbin/ldconfig", "/usr/sbin/ldconfig"} {
		if out, err := exec.CommandContext(ctx, program, "-p").Output(); err == nil {
			return string(out)
		}
	}
	return ""
}

// cached gives the paths of a library in what ldconfig prints: lines like "	libnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2".
func cached(list, name string) (paths []string) {
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == name {
			if _, path, ok := strings.Cut(strings.TrimSpace(line), " => "); ok {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

const (
	packagePattern = "lib/python3*/{site,dist}-packages/nvidia/*/lib" // for people: what is looked for below a root
	wslDirectory   = "/usr/lib/wsl/lib"                               // where the driver is under WSL
)

// packageRoots lists the Python environments that are looked at: an active one, the user's, the system's.
func packageRoots() []string {
	var all []string
	for _, variable := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if root := os.Getenv(variable); root != "" {
			all = append(all, root)
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		all = append(all, filepath.Join(home, ".local"))
	}
	return append(all, "/usr/local", "/usr")
}

// packageDirectories lists where pip puts NVIDIA's libraries, those of an active environment first, and the driver's place under WSL.
func packageDirectories() []string {
	var all []string
	for _, root := range packageRoots() {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			found, err := filepath.Glob(filepath.Join(root, "lib", "python3*", packages, "nvidia", "*", "lib"))
			if err == nil { // else root has a character that is special in a pattern
				all = append(all, found...)
			}
		}
	}
	return append(all, wslDirectory)
}
