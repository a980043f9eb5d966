package runs

import (
	"context"
	"slices"
	"strings"
)

// What a loss does not read of a datum's loss_fn_inputs is taken and left alone. That it was not read is told once for each name of a run: in the log, and with the run.

// Bounds of what is told about one run: names come from outside.
const (
	maxUnread     = 16 // names
	maxUnreadName = 64 // bytes of one
)

// unreadInputs are the names of inputs that the loss of an operation does not read, in alphabetical order, and not many of them.
func unreadInputs(op ForwardBackward) []string {
	keys, ok := losses[op.Loss]
	if !ok {
		return nil
	}
	var names []string
	for _, d := range op.Data {
		for name := range d.Inputs {
			if keys.reads(name) {
				continue
			}
			if name = strings.ToValidUTF8(name[:min(len(name), maxUnreadName)], ""); !slices.Contains(names, name) && len(names) < 2*maxUnread {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// noteUnread tells of inputs that are not read, if nobody has been told of them.
func (c *Core) noteUnread(r *run, op ForwardBackward) {
	names := unreadInputs(op)
	if len(names) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(r.Unread, name) })
	if fresh = fresh[:min(len(fresh), max(maxUnread-len(r.Unread), 0))]; len(fresh) == 0 {
		return
	}
	for _, name := range fresh {
		c.log.Info("an input in loss_fn_inputs is not read by the loss", "run", r.ID, "input", name, "loss", op.Loss)
	}
	r.Unread = append(slices.Clip(r.Unread), fresh...) // what was given out does not change
	c.start(func(ctx context.Context) {
		c.logged("run could not be stored", c.writeRun(context.WithoutCancel(ctx), r), "run", r.ID)
	})
}
