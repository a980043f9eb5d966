package lan

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// echo answers with what it gets, on a machine, and tells what came.
func echo(t *testing.T, m *Machine) (address string, came chan string) {
	t.Helper()
	address, came = net.JoinHostPort(m.Address(), "7"+fmt.Sprintf("%03d", m.number)), make(chan string, 100)
	var listener net.Listener
	if err := m.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					came <- lines.Text()
					fmt.Fprintln(c, lines.Text())
				}
			}()
		}
	}()
	return address, came
}

// dial connects from a machine, or from the test, and gives what sends a word, and what comes back.
func dial(t *testing.T, from *Machine, address string) (send func(string), back chan string) {
	t.Helper()
	var c net.Conn
	if err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", address, time.Minute)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	back = make(chan string, 100)
	go func() {
		for lines := bufio.NewScanner(c); lines.Scan(); {
			back <- lines.Text()
		}
	}()
	return func(word string) {
		t.Helper()
		if _, err := fmt.Fprintln(c, word); err != nil {
			t.Error(err)
		}
	}, back
}

func comes(t *testing.T, what string, c chan string, want string) {
	t.Helper()
	select {
	case got := <-c:
		if got != want {
			t.Errorf("%s: %q came, wanted %q", what, got, want)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s: %q does not come", what, want)
	}
}

func staysAway(t *testing.T, what string, c chan string) {
	t.Helper()
	select {
	case got := <-c:
		t.Errorf("%s: %q came", what, got)
	case <-time.After(300 * time.Millisecond):
	}
}

// TestFaults breaks the network in every way, for one machine and not for another one: what was sent comes when it is whole again, over the same connection.
func TestFaults(t *testing.T) {
	if !Inside(t) {
		return
	}
	n := New(t)
	a, b, c := n.Machine(), n.Machine(), n.Machine()
	address, came := echo(t, a)
	fromB, toB := dial(t, b, address)
	fromC, toC := dial(t, c, address)
	fromTest, toTest := dial(t, nil, address)
	word := 0
	for _, f := range []struct {
		name                string
		fault               func(on bool)
		arrives, isAnswered bool // of B
		others              bool // reach A
	}{
		{"A is mute", func(on bool) { a.Mute(on) }, true, false, false},
		{"A is deaf", func(on bool) { a.Deaf(on) }, false, false, false},
		{"A is mute for B", func(on bool) { a.Mute(on, b) }, true, false, true},
		{"A is deaf for B", func(on bool) { a.Deaf(on, b) }, false, false, true},
		{"B is mute", func(on bool) { b.Mute(on) }, false, false, true},
		{"B is deaf", func(on bool) { b.Deaf(on) }, true, false, true},
		{"A is down", a.Down, false, false, false},
		{"B is down", b.Down, false, false, true},
		{"A is narrow", func(on bool) { a.Narrow(map[bool]string{true: "64kbit", false: ""}[on]) }, true, true, true},
		{"nothing", func(bool) {}, true, true, true},
	} {
		word++
		text := fmt.Sprint("word ", word)
		f.fault(true)
		fromB(text)
		if f.arrives {
			comes(t, f.name+", at A", came, text)
		} else {
			staysAway(t, f.name+", at A", came)
		}
		if f.isAnswered {
			comes(t, f.name+", at B", toB, text)
		} else {
			staysAway(t, f.name+", at B", toB)
		}
		if f.others {
			fromC(text + " of C")
			comes(t, f.name+", at A", came, text+" of C")
			comes(t, f.name+", at C", toC, text+" of C")
			fromTest(text + " of the test")
			comes(t, f.name+", at A", came, text+" of the test")
			comes(t, f.name+", at the test", toTest, text+" of the test")
		}
		f.fault(false)
		if !f.arrives {
			comes(t, f.name+" no longer, at A", came, text)
		}
		if !f.isAnswered {
			comes(t, f.name+" no longer, at B", toB, text)
		}
	}
}

// TestNarrow sends more than a narrow network takes at once.
func TestNarrow(t *testing.T) {
	if !Inside(t) {
		return
	}
	n := New(t)
	a := n.Machine()
	address, came := echo(t, a)
	send, back := dial(t, nil, address)
	a.Narrow("400kbit")
	begun, long := time.Now(), strings.Repeat("x", 50_000)
	send(long)
	comes(t, "there", came, long)
	comes(t, "back", back, long)
	if took := time.Since(begun); took < time.Second { // twice 50 kB with 50 kB a second
		t.Errorf("it took %v", took)
	}
}

// TestStart has a process on a machine see that machine's network, and the test its own.
func TestStart(t *testing.T) {
	if !Inside(t) {
		return
	}
	m := New(t).Machine()
	for _, where := range []struct {
		on   *Machine
		want string
	}{{m, m.Address() + "/"}, {nil, prefix + "1/"}} {
		var out strings.Builder
		c := exec.Command(program("ip"), "-4", "-oneline", "address")
		c.Stdout = &out
		if err := where.on.Start(c); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil || !strings.Contains(out.String(), where.want) || strings.Count(out.String(), prefix) != 1 {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}
