package runs

import (
	"strings"
)

// CheckpointKind is the middle part of a checkpoint path.
type CheckpointKind string

// The kinds of checkpoint.
const (
	KindWeights  CheckpointKind = "weights"          // adapter and optimizer state, to train on
	KindSampler  CheckpointKind = "sampler_weights"  // adapter, to sample
	KindExternal CheckpointKind = "external_weights" // adapter, to download
)

// maxNameBytes leaves room for the suffix that makes a folder's name unique.
const maxNameBytes = 200

// Path is a parsed checkpoint path.
type Path struct {
	RunID string
	Kind  CheckpointKind
	Name  string
}

// String gives the path in its public form.
func (p Path) String() string { return "tinker://" + p.RunID + "/" + string(p.Kind) + "/" + p.Name }

// ParsePath reads tinker://RUN/KIND/NAME. KindInvalid says what is wrong with it.
func ParsePath(s string) (Path, error) {
	rest, ok := strings.CutPrefix(s, "tinker://")
	if !ok {
		return Path{}, invalidf("path %s: must begin with tinker://", quote(s))
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return Path{}, invalidf("path %s: must be tinker://RUN/KIND/NAME", quote(s))
	}
	p := Path{RunID: parts[0], Kind: CheckpointKind(parts[1]), Name: parts[2]}
	switch p.Kind {
	case KindWeights, KindSampler, KindExternal:
	default:
		return Path{}, invalidf("path %s: the kind %s is none of weights, sampler_weights, external_weights", quote(s), quote(parts[1]))
	}
	if !validRunID(p.RunID) {
		return Path{}, invalidf("path %s: %s is not the id of a run", quote(s), quote(p.RunID))
	}
	if err := checkName(p.Name); err != nil {
		return Path{}, err
	}
	return p, nil
}

// ParseCheckpointID reads KIND/NAME.
func ParseCheckpointID(runID, id string) (Path, error) {
	if !strings.Contains(id, "/") {
		return Path{}, invalidf("checkpoint id %s: expected weights/<name>, sampler_weights/<name> or external_weights/<name>", quote(id))
	}
	return ParsePath("tinker://" + runID + "/" + id)
}

// checkName refuses everything that could mean another file than itself.
func checkName(name string) error {
	if name == "" {
		return invalidf("checkpoint name: must not be empty")
	}
	if len(name) > maxNameBytes {
		return invalidf("checkpoint name: has %d bytes, at most %d are allowed", len(name), maxNameBytes)
	}
	if name[0] == '.' {
		return invalidf("checkpoint name %s: must not begin with a dot", quote(name))
	}
	for i := 0; i < len(name); i++ {
		if !nameByte(name[i]) {
			return invalidf("checkpoint name %s: byte %d is none of the letters, digits and - _ . = + @ that are allowed", quote(name), i)
		}
	}
	return nil
}

func nameByte(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || strings.IndexByte("-_.=+@", b) >= 0
}

func validRunID(id string) bool {
	if id == "" || len(id) > 150 || id[0] == '.' {
		return false
	}
	for i := 0; i < len(id); i++ {
		if id[i] != ':' && !nameByte(id[i]) {
			return false
		}
	}
	return true
}
