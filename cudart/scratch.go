package cudart

import "errors"

// scratch is memory that operations take while they run, for rows that are rounded before products and for intermediate results: one piece, so that it is as much as they take at once, not as much as there are sizes of them. It is given out as a stack. What comes later in the stream may
// have it again at once.
type scratch struct {
	at    Address // 0: there is none
	bytes int
	used  int
}

// ReserveScratch has so many bytes ready at least: operations that take no more at once allocate nothing. An error wraps ErrOutOfMemory when there is too little. Others take more then, where there is memory; it may wait for all
// that the GPU has been given when it replaces what there is.
func (v *Device) ReserveScratch(bytes int) error {
	if v.c == nil {
		return errClosed
	}
	s := &v.scratch
	if bytes <= s.bytes {
		return nil
	}
	if s.used > 0 {
		return errors.New("scratch memory is in use")
	}
	if s.at != 0 { // it goes to the driver, because memory of that size may never be asked for again
		if err := errors.Join(v.ReleaseScratch(), v.pool.giveBack()); err != nil {
			return err
		}
	}
	at, err := v.Alloc(bytes)
	if err == nil {
		s.at, s.bytes = at, rounded(bytes)
	}
	return err
}

// ReleaseScratch gives that memory to whoever allocates next.
func (v *Device) ReleaseScratch() error {
	s := &v.scratch
	if s.at == 0 {
		return nil
	}
	err := v.Free(s.at)
	*s = scratch{}
	return err
}

// takeScratch gives memory, to be given back in the reverse order.
func (v *Device) takeScratch(bytes int) (Address, error) {
	s, size := &v.scratch, (bytes+511)&^511
	if s.used == 0 && size > s.bytes {
		if err := v.ReserveScratch(size); err != nil {
			return 0, err
		}
	}
	if s.used+size > s.bytes {
		return v.Alloc(bytes)
	}
	at := s.at + Address(s.used)
	s.used += size
	return at, nil
}

func (v *Device) giveScratch(at Address) error {
	s := &v.scratch
	if s.at == 0 || at < s.at || at >= s.at+Address(s.bytes) {
		return v.Free(at)
	}
	s.used = int(at - s.at)
	return nil
}
