package cudart

import "sync"

// An operation of NCCL is half launched while its kernel, on some of its GPUs, waits for GPUs whose hosts have not launched it yet. What takes memory from the driver or gives it back may wait for such a kernel while it keeps
// other threads from launching, and neither would end. So that is done alone: while no group is in a section, which begins for each of its devices after their hosts have met and ends when all have launched their parts.
//
// Nobody waits in a circle. Who is alone waits for the driver only, and everything that is launched then ends by itself. Who is in a section asks for no memory and makes no graph (Hold), and waits for nobody but the group's
// other devices, which enter without waiting once one of them is in. Before a section begins, nothing is put off on its devices (Ready): who holds the lock of a recorder, or of a GPU, while it waits to be alone keeps nobody
// from entering, launching or leaving.
type launching struct {
	mu      sync.Mutex
	changed *sync.Cond
	inside  int  // groups in a section
	waiting int  // who wants to be alone: groups that are not in a section yet come after them
	alone   bool // somebody is
}

var launches = func() *launching {
	l := &launching{}
	l.changed = sync.NewCond(&l.mu)
	return l
}()

// section is a group's.
type section struct{ devices int } // that are in it, guarded by launching.mu

func (l *launching) enter(s *section) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s.devices == 0 && (l.alone || l.waiting > 0) {
		l.changed.Wait()
	}
	if s.devices++; s.devices == 1 {
		l.inside++
		l.changed.Broadcast() // to the group's others
	}
}

func (l *launching) leave(s *section) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.devices--; s.devices == 0 {
		l.inside--
		l.changed.Broadcast()
	}
}

// without runs f while no group is in a section.
func (l *launching) without(f func()) {
	l.mu.Lock()
	l.waiting++
	for l.alone || l.inside > 0 {
		l.changed.Wait()
	}
	l.waiting--
	l.alone = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.alone = false
		l.changed.Broadcast()
	}()
	f()
}
