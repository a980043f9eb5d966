package plugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The next process of a data directory knows of each one before it whether it ended by a fault of its own, also of those that ended before anybody could ask.
func TestEndings(t *testing.T) {
	if OutOfMemoryKills() < 0 {
		t.Skip("the kernel does not tell how many processes it ended for want of memory")
	}
	dir := t.TempDir()
	var want []string
	for _, c := range []struct {
		name    string
		signal  syscall.Signal
		exit    bool // by Exit
		load    bool // its gateway leaves while it loads
		outside bool
	}{
		{"killed", syscall.SIGKILL, false, false, true},
		{"killed again", syscall.SIGKILL, false, false, true},
		{"asked to end", syscall.SIGTERM, false, false, true},
		{"a signal as C code gives it", syscall.SIGSEGV, false, false, false},
		{"aborted", syscall.SIGABRT, false, false, false},
		{"ended itself", 0, true, false, false},
		{"left while it loads", 0, false, true, true},
		{"killed after all that", syscall.SIGKILL, false, false, true},
	} {
		p := exec.CommandContext(t.Context(), os.Args[0], serveArgument, "--listen", "127.0.0.1:0", "--data", dir, "--model", t.TempDir())
		p.Env = append(os.Environ(), "PLUGINS_TEST_SERVE=1")
		if c.exit {
			p.Env = append(p.Env, "PLUGINS_TEST_EXIT=1")
		}
		out, err := p.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 64<<10)
		n := 0
		for err == nil && !strings.Contains(string(said[:n]), "the backend listens") { // what notes faults is there by then
			var more int
			more, err = out.Read(said[n:])
			n += more
		}
		if err != nil && !c.exit {
			t.Fatalf("%s: %v: %s", c.name, err, said[:n])
		}
		var now life
		text, err := os.ReadFile(filepath.Join(dir, lifeFile))
		if err == nil {
			err = json.Unmarshal(text, &now)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(now.Outside, want) {
			t.Errorf("%s: %q are said to have been ended from outside, want %q", c.name, now.Outside, want)
		}
		if c.signal != 0 {
			if err := p.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
		}
		if c.load {
			leaveWhileLoading(t, string(said[:n]))
		}
		_, _ = io.Copy(io.Discard, out)
		_ = p.Wait() // it ended as it was made to
		if c.outside {
			want = append(want, now.Process)
		}
	}
	last, err := beginLife(dir, "the last")
	if err != nil || !slices.Equal(last.Outside, want) {
		t.Errorf("at last: %q, %v, want %q", last.Outside, err, want)
	}
}

// leaveWhileLoading is a gateway of a process that has said where it listens.
func leaveWhileLoading(t *testing.T, said string) {
	t.Helper()
	_, address, _ := strings.Cut(said, `"address":"`)
	address, _, _ = strings.Cut(address, `"`)
	a, err := Attach(t.Context(), AttachRequest{Address: address, Gateway: "g", Number: uint64(time.Now().UnixNano())})
	if err != nil {
		t.Fatal(err)
	}
	loading := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := a.Backend().Load(t.Context(), LoadRequest{Name: "m"}, func(LoadProgress) { close(loading) })
		ended <- err
	}()
	<-loading
	a.Close()
	if err := <-ended; !errors.Is(err, ErrBackendLost) {
		t.Errorf("the load: %v", err)
	}
}

// Only so many are remembered, and what cannot be read is nothing.
func TestEndingsAreBounded(t *testing.T) {
	dir := t.TempDir()
	var last *life
	for i := range maxEnded + 3 {
		var err error
		if last, err = beginLife(dir, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(last.Outside); n != maxEnded || last.Outside[n-1] != fmt.Sprint(maxEnded+1) {
		t.Errorf("%d: %q", n, last.Outside)
	}
	if err := os.WriteFile(filepath.Join(dir, lifeFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if last, err := beginLife(dir, "next"); err != nil || len(last.Outside) != 0 {
		t.Errorf("after damage: %+v, %v", last, err)
	}
}

// exitSoon is a backend program that ends itself.
func exitSoon() {
	time.Sleep(100 * time.Millisecond)
	for fault.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	Exit(errors.New("the device is lost"))
}
