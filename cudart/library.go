package cudart

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// load finds a shared library: in the given directories, then wherever the system's loader looks (LD_LIBRARY_PATH and ldconfig's cache), then in the folders of pip's
// nvidia packages and of WSL. The error says where it was looked for and what each place answered.
func load(name string, directories []string, open func(path string) error) (string, error) {
	var tried []string
	try := func(place, path string) bool {
		err := open(path)
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s: %s", place, strings.TrimPrefix(err.Error(), place+": "))) // which the loader's text begins with
		}
		return err == nil
	}
	for _, dir := range directories {
		if path := filepath.Join(dir, name); dir != "" && try(path, path) {
			return path, nil
		}
	}
	system := "LD_LIBRARY_PATH, which is not set, and the system's cache"
	if paths := os.Getenv("LD_LIBRARY_PATH"); paths != "" {
		system = fmt.Sprintf("LD_LIBRARY_PATH %q and the system's cache", paths)
	}
	if try(system, name) {
		return name, nil
	}
	found := packageDirectories()
	for _, dir := range found {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil && try(path, path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s could not be loaded (%s; pip's folders %s below %s: %d folders, none of which has one that loads, and %s)", name, strings.Join(tried, "; "), packagePattern, strings.Join(packageRoots(), ", "), len(found)-1, wslDirectory)
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

// libraryVersionText gives "2.21.5" for 22105, as NCCL and cuBLASLt number their versions.
func libraryVersionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100) }
