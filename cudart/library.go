package cudart

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// load finds a shared library: in the given directories, then wherever the system's loader looks (LD_LIBRARY_PATH and ldconfig's cache), then in the folders of pip's
// nvidia packages and of WSL. The error says where it was looked for and what each place answered.
func load(name string, directories []string, open func(path string) error) (string, error) {
	var tried []string
	try := func(path string) bool {
		err := open(path)
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s: %v", path, err))
		}
		return err == nil
	}
	for _, dir := range directories {
		if path := filepath.Join(dir, name); dir != "" && try(path) {
			return path, nil
		}
	}
	if try(name) {
		return name, nil
	}
	for _, dir := range packageDirectories() {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil && try(path) {
			return path, nil
		}
	}
	return "", errors.New(name + " could not be loaded (" + strings.Join(tried, "; ") + "; nor is it in a Python environment's nvidia/*/lib)")
}

// packageDirectories lists where pip puts NVIDIA's libraries, those of an active environment first, and the driver's place under WSL.
func packageDirectories() []string {
	var all []string
	roots := []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX")}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".local"))
	}
	for _, root := range append(roots, "/usr/local", "/usr") {
		if root == "" {
			continue
		}
		for _, packages := range []string{"site-packages", "dist-packages"} {
			found, err := filepath.Glob(filepath.Join(root, "lib", "python3*", packages, "nvidia", "*", "lib"))
			if err == nil { // else root has a character that is special in a pattern
				all = append(all, found...)
			}
		}
	}
	return append(all, "/usr/lib/wsl/lib")
}

// libraryVersionText gives "2.21.5" for 22105, as NCCL and cuBLASLt number their versions.
func libraryVersionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100) }
