package runs

// What an active session takes in memory, besides its texts, by a generous estimate in bytes.
const (
	sessionBytes = 1 << 10
	runBytes     = 8 << 10
	samplerBytes = 1 << 10
)

// held is what the active sessions of an owner take in memory, with their runs and sampling sessions.
type held struct {
	sessions int
	bytes    int64
}

// mayHold tells whether an owner may have more in memory. mu is held.
func (c *Core) mayHold(owner string, sessions int, bytes int64) error {
	h := c.held[owner]
	if sessions > 0 && h.sessions+sessions > c.cfg.MaxSessions {
		return refusef(KindBusy, "%d sessions of yours are active, and no more may be (sessions.max_active): finish those that are not needed, or repeat later", h.sessions)
	}
	if h.bytes+bytes > c.cfg.MaxSessionBytes {
		return refusef(KindBusy, "your active sessions take %d KiB with their models, sampling sessions and metadata, and no more than %d MiB may be taken (sessions.max_memory_mib): finish those that are not needed, or repeat later",
			h.bytes>>10, c.cfg.MaxSessionBytes>>20)
	}
	return nil
}

// hold counts what a session takes more. mu is held.
func (c *Core) hold(s *session, sessions int, bytes int64) {
	h := c.held[s.Owner]
	c.held[s.Owner] = held{h.sessions + sessions, h.bytes + bytes}
	s.holds.sessions, s.holds.bytes = s.holds.sessions+sessions, s.holds.bytes+bytes
}

// letGo takes a session that has ended out of the counts. mu is held.
func (c *Core) letGo(s *session) {
	h := c.held[s.Owner]
	h.sessions, h.bytes = h.sessions-s.holds.sessions, h.bytes-s.holds.bytes
	if s.holds = (held{}); h == (held{}) {
		delete(c.held, s.Owner)
	} else {
		c.held[s.Owner] = h
	}
}

// size is what a session takes, alone.
func (s *session) size() int64 {
	n := int64(sessionBytes + len(s.UserMetadata) + len(s.DisplayName) + len(s.ProjectID) + len(s.SDKVersion))
	for _, tag := range s.Tags {
		n += int64(len(tag))
	}
	return n
}

func (r *run) size() int64     { return runBytes + int64(len(r.UserMetadata)) }
func (s *sampler) size() int64 { return samplerBytes + int64(len(s.ModelPath)) }
