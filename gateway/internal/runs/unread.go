package runs

import (
	"context"
	"slices"
)

// What a loss does not read of a datum's loss_fn_inputs is taken and left alone. That it was not read is told once for each name of a run: in the log, and with the run.

// Bounds of what is told about one run: names come from outside.
const (
	maxUnread     = 16 // names
	maxUnreadName = 64 // bytes of one
)

// unreadInputs are the names of inputs that the loss of an operation does not read, in alphabetical order, without those that are known.
func unreadInputs(op ForwardBackward, known []string) []string {
	keys, ok := losses[op.Loss]
	if !ok || len(known) >= maxUnread {
		return nil
	}
	var names []string
	for _, d := range op.Data {
		for name := range d.Inputs {
			if keys.reads(name) {
				continue
			}
			name = name[:min(len(name), maxUnreadName)]
			if !slices.Contains(names, name) && !slices.Contains(known, name) {
				names = append(names, name)
			}
		}
		if len(names) >= maxUnread {
			break
		}
	}
	slices.Sort(names)
	return names[:min(len(names), maxUnread-len(known))]
}

// noteUnread tells of inputs that are not read, if nobody has been told of them.
func (c *Core) noteUnread(r *run, op ForwardBackward) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := unreadInputs(op, r.Unread)
	if len(fresh) == 0 {
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
