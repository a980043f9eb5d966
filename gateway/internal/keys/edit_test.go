package keys

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestListRemoveRotate(t *testing.T) {
	a, ann, second, bob, root := authenticator(t)
	path := a.Ring.path
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content := "# who may use this server\n" + string(before) + "\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := List(path)
	if err != nil || len(list) != 4 || list[0].Name != "ann" || list[0].ID == list[1].ID || len(list[0].ID) != 8 || list[2].Admin || !list[3].Admin {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, c := range []struct {
		name  string
		which Selection
		want  string
	}{
		{"nobody", Selection{Name: "eve"}, `there is no key of "eve"`},
		{"several", Selection{Name: "ann"}, list[0].ID + ", " + list[1].ID},
		{"another's id", Selection{Name: "ann", ID: list[2].ID}, "ann has no key"},
	} {
		if _, err := Remove(path, c.which); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("remove %s: %v", c.name, err)
		}
		if _, _, err := Rotate(path, c.which, 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("rotate %s: %v", c.name, err)
		}
	}
	if now, _ := os.ReadFile(path); string(now) != content {
		t.Error("what was refused has changed the file")
	}
	gone, err := Remove(path, Selection{Name: "ann", ID: list[1].ID})
	if err != nil || len(gone) != 1 || gone[0] != list[1] {
		t.Fatalf("%+v, %v", gone, err)
	}
	bobs, old, err := Rotate(path, Selection{Name: "bob"}, time.Hour)
	if err != nil || old.Expires.IsZero() || old.Name != "bob" {
		t.Fatalf("%+v, %v", old, err)
	}
	roots, _, err := Rotate(path, Selection{Name: "root"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := os.ReadFile(path); !strings.HasPrefix(string(now), "# who may use this server\nann ") || strings.Contains(string(now), bobs) {
		t.Errorf("the file is\n%s", now)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	a.Ring.lookNow()
	for _, c := range []struct{ name, key, owner string }{
		{"kept", ann, "ann"}, {"removed", second, ""}, {"rotated", bob, "bob"}, {"new", bobs, "bob"}, {"rotated at once", root, ""}, {"its new one", roots, "root"},
	} {
		if got := owner(t, a, c.key); got != c.owner {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	if !a.Admin(roots) || a.Admin(bobs) {
		t.Error("a new key has not the rights of the old one")
	}
	for _, name := range []string{"ann", "root"} {
		if _, err := Remove(path, Selection{Name: name, All: true}); err != nil {
			t.Error(err)
		}
	}
	if _, err := Remove(path, Selection{Name: "bob", All: true}); err == nil || !strings.Contains(err.Error(), "last key") {
		t.Errorf("the last keys: %v", err)
	}
}

// lookNow has the next question look at the file.
func (r *Ring) lookNow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked = time.Time{}
}

func TestKeysExpire(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	later, err := AddWith(path, "ann", true, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	over, err := AddWith(path, "bob", false, time.Now().Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := ring.Owner(later); name != "ann" || err != nil || !ring.Admin(later) {
		t.Errorf("%q, %v", name, err)
	}
	name, err := ring.Owner(over)
	if name != "" || !errors.Is(err, ErrExpired) || !errors.Is(err, ErrUnknown) || !strings.Contains(TellRefused(err), "expired") {
		t.Errorf("%q, %v", name, err)
	}
	if _, _, err := Rotate(path, Selection{Name: "bob"}, time.Hour); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("rotate: %v", err)
	}
	if key, old, err := Rotate(path, Selection{Name: "ann"}, 24*time.Hour); err != nil || old.Expires.After(time.Now().Add(time.Hour)) || key == "" {
		t.Errorf("the old key lives longer than it did: %+v, %v", old, err)
	}
	if list := ring.Entries(); len(list) != 2 || !slices.ContainsFunc(list, func(e Entry) bool { return e.Name == "bob" && !e.Expires.IsZero() }) {
		t.Errorf("%+v", list)
	}
}

// A stream that runs with a key goes on while the key is rotated, as long as the old one is kept, and ends with it.
func TestRotationWhileAStreamIsRunning(t *testing.T) {
	a, _, _, bob, _ := authenticator(t)
	begun, ends, release := make(chan struct{}, 2), make(chan string, 2), make(chan struct{}, 1)
	url, _ := holding(t, a, func(w http.ResponseWriter, r Request) {
		begun <- struct{}{}
		select {
		case <-release:
			ends <- "answered"
		case <-r.Context().Done():
			ends <- "ended"
		}
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	stream := func(key string) {
		go func() {
			if answer, err := transport.RoundTrip(ask(t, url, key, nil)); err == nil {
				answer.Body.Close()
			}
		}()
		<-begun
	}
	stream(bob)
	second, _, err := Rotate(a.Ring.path, Selection{Name: "bob"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	a.Ring.lookNow()
	if owner(t, a, second) != "bob" || owner(t, a, bob) != "bob" {
		t.Error("one of the two keys does not work")
	}
	release <- struct{}{}
	if got := <-ends; got != "answered" {
		t.Errorf("the stream of a key that is kept was %s", got)
	}
	stream(second)
	id := ""
	for _, e := range a.Ring.Entries() {
		if e.Name == "bob" && e.Expires.IsZero() {
			id = e.ID
		}
	}
	if _, _, err := Rotate(a.Ring.path, Selection{Name: "bob", ID: id}, time.Second); err != nil {
		t.Fatal(err)
	}
	if got := <-ends; got != "ended" { // by itself: nobody else looks at the file or the clock
		t.Errorf("the stream of a key that is over was %s", got)
	}
}
