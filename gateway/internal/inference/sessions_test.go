package inference

import (
	"fmt"
	"testing"
	"time"
)

// TestSessionRoom: sessions that were unused for longest go when a key's are too many, all of a sudden too; none is found after its hour; other keys' stay.
func TestSessionRoom(t *testing.T) {
	s := NewSessions()
	at := time.Unix(1_000_000, 0)
	s.now = func() time.Time { return at }
	turn := func(tokens int) *Turn { return &Turn{Read: make([]int32, tokens), length: tokens, ended: -1} }
	s.add("other", "kept", turn(10), nil)
	const small = 20_000
	for i := range small {
		at = at.Add(time.Millisecond)
		s.add("key", fmt.Sprint(i), turn(1), nil)
	}
	at = at.Add(time.Second)
	s.add("key", "large", turn((maxSessionBytes-maxSessionBytes/16)/tokenBytes-1000*turnBytes/tokenBytes), nil)
	o := s.owners["key"]
	total := 0
	for _, one := range o.sessions {
		total += one.bytes
	}
	if o.bytes != total || total > maxSessionBytes || o.sessions["large"] == nil || o.sessions[fmt.Sprint(small-1)] == nil || o.sessions["0"] != nil {
		t.Errorf("%d sessions have %d bytes, counted as %d", len(o.sessions), total, o.bytes)
	}
	if s.session("other", "kept") == nil {
		t.Error("another key's session is gone")
	}
	at = at.Add(time.Second)
	s.add("key", "too large", turn(maxSessionBytes/tokenBytes), nil)
	if o.bytes != 0 || len(o.sessions) != 0 {
		t.Errorf("%d sessions have %d bytes", len(o.sessions), o.bytes)
	}
	at = at.Add(sessionKept + time.Millisecond)
	s.swept = at
	if s.session("other", "kept") != nil {
		t.Error("a session is found after its time")
	}
}
