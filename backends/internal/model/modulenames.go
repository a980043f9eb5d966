package model

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// moduleNames are modules as a configuration names them: each by its whole name, by that of one that it is in, or by a pattern with a * in the place of a part of the name.
type moduleNames struct {
	exact map[string]bool
	globs []string
}

// mostGlobs bounds the patterns of a configuration: each is compared with every name. Released models have one for each kind of module.
const mostGlobs = 256

func newModuleNames(all []string) (moduleNames, error) {
	n := moduleNames{exact: map[string]bool{}}
	for _, name := range all {
		switch {
		case strings.HasPrefix(name, "re:"): // it is for more than can be told from a weight: what the files have decides
		case strings.ContainsAny(name, `*?[\`):
			if n.globs = append(n.globs, name); len(n.globs) > mostGlobs {
				return n, fmt.Errorf("there are more than %d patterns with a *, ?, [ or \\: name the modules", mostGlobs)
			}
		default:
			n.exact[name] = true
		}
	}
	return n, nil
}

// has tells whether a module, or one that it is in, is among them.
func (n moduleNames) has(module string) bool {
	for name := module; name != ""; {
		if n.exact[name] || slices.ContainsFunc(n.globs, func(glob string) bool {
			ok, err := path.Match(glob, name)
			return err == nil && ok
		}) {
			return true
		}
		name = name[:max(strings.LastIndexByte(name, '.'), 0)]
	}
	return false
}

// keeps tells whether the configuration says that a module's, by any of its names, weight is not quantized.
func (q *Quantization) keeps(names ...string) bool {
	return slices.ContainsFunc(names, q.whole.has)
}
