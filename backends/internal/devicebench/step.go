package main

import (
	"fmt"
	"slices"
	"strings"
)

// step is a part of a run that fails, hangs and is chosen by itself: a suite, or one kind of measurement of one workload.
type step struct {
	Name     string   // chosen by it,
	Groups   []string // or by one of these
	Suite    *suite
	Workload *workload
	Kind     string // of measurement: a key of measurements
}

// steps are all of them in the order in which they run: comparisons of bits, which are quick, then tests, then speed, and last what is slow.
func steps(workloads []workload) (all []step) {
	measure := func(kinds ...string) {
		for _, kind := range kinds {
			for _, w := range workloads {
				if len(w.Kinds) > 0 && !slices.Contains(w.Kinds, kind) {
					continue
				}
				all = append(all, step{Name: w.Name + "-" + kind, Groups: []string{w.Name, kind}, Workload: &w, Kind: kind})
			}
		}
	}
	measure("bits", "gradients", "placements")
	for _, s := range suites {
		if s.Tool != "" {
			measure("speed", "products")
		}
		all = append(all, step{Name: s.Name, Groups: []string{"suites"}, Suite: &s})
	}
	return all
}

// names are everything that -only takes.
func names(all []step) (allowed []string) {
	for _, s := range all {
		for _, name := range append(slices.Clone(s.Groups), s.Name) {
			if !slices.Contains(allowed, name) {
				allowed = append(allowed, name)
			}
		}
	}
	return allowed
}

// choose gives the steps that are named, or belong to a group that is; all if nothing is. left are the names of the others.
func choose(all []step, only []string) (chosen []step, left []string, err error) {
	if len(only) == 0 {
		return all, nil, nil
	}
	allowed := names(all)
	for _, name := range only {
		if !slices.Contains(allowed, name) {
			return nil, nil, fmt.Errorf("-only: %q is no step; allowed are %s", name, strings.Join(allowed, ", "))
		}
	}
	for _, s := range all {
		if slices.ContainsFunc(only, func(name string) bool { return name == s.Name || slices.Contains(s.Groups, name) }) {
			chosen = append(chosen, s)
		} else {
			left = append(left, s.Name)
		}
	}
	return chosen, left, nil
}
