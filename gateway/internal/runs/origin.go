package runs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode"
)

// Origin is where an imported adapter came from.
type Origin struct {
	// Source is what the importer says, and nobody has checked: hf://org/name@COMMIT of one that was pulled from a hub, else the name of a folder; "" if nothing was said.
	Source string `json:"source"`
	SHA256 string `json:"sha256"` // of its file of weights, as it came
}

// checkSource refuses what would not be shown as it is.
func checkSource(source string) error {
	if err := checkLabel("source", source); err != nil {
		return err
	}
	if strings.ContainsFunc(source, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalidf("source: %s must be one line of printable characters", quote(source))
	}
	return nil
}

// valid tells whether what a folder says of itself may be shown.
func (o *Origin) valid() bool {
	if o == nil {
		return false
	}
	sum, err := hex.DecodeString(o.SHA256)
	return err == nil && len(sum) == sha256.Size && checkSource(o.Source) == nil
}

// shown is an origin as somebody may see it: where an import came from is its owner's to know, also when it is published, since it may name a private repository.
func (o *Origin) shown(toOwner bool) *Origin {
	if o == nil || toOwner {
		return o
	}
	return &Origin{SHA256: o.SHA256}
}

// began is the origin of the import that a checkpoint is or was made from, as owner may see it; nil where there is none, or the checkpoint's run is not in memory.
func (c *Core) began(cp *CheckpointInfo, owner string) *Origin {
	if cp.Origin != nil {
		return cp.Origin.shown(cp.Owner == owner)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.runs[cp.RunID]; r != nil {
		return r.Began.shown(r.Owner == owner)
	}
	return nil
}

// Imports lists the training checkpoints that the caller has imported or copied of an import, oldest first, as many as one answer has; more tells that there are others.
func (c *Core) Imports(_ context.Context, owner string) (list []CheckpointInfo, more bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.now()
	bytes := int64(0)
	for _, cp := range c.lists.byOwner[owner] {
		if cp.Kind != KindWeights || cp.Origin == nil || expired(cp.ExpiresAt, now) {
			continue
		}
		if bytes += cp.textBytes() + int64(len(cp.Origin.Source)); bytes > maxListBytes {
			more = true
			break
		}
		list = append(list, *cp.info())
	}
	slices.SortStableFunc(list, func(a, b CheckpointInfo) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return list, more, nil
}
