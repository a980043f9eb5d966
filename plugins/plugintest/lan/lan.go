// Package lan gives tests machines on a network: each is a network namespace, with an interface that a bridge joins to the others and to the test. What
// breaks is the kernel's network, so that TCP has to notice. The namespaces have no names: they live as long as the test's process, and nothing outside
// of it is touched.
package lan

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	bridge   = "br0"
	card     = "eth0" // a machine's own interface
	prefix   = "10.77.0."
	mask     = "/24"
	machines = 200 // at most
)

// Network joins machines. The test is on it as well.
type Network struct {
	testing.TB
	mu    sync.Mutex
	count int
}

// Machine is on a network. Its methods may be called concurrently.
type Machine struct {
	*Network
	number int
	space  *os.File
	port   string // of the bridge

	mu sync.Mutex // one change at a time
}

// possible tells that there was a network already: what fails afterwards is no lack of the kernel's.
var possible atomic.Bool

// New makes a network, in a test that is Inside. It skips where the kernel lacks something.
func New(t testing.TB) *Network {
	t.Helper()
	n := &Network{TB: t}
	if err := n.begin(); err != nil {
		if possible.Load() {
			t.Fatal(err)
		}
		t.Skipf("the kernel has not what a network of namespaces needs: %v", err)
	}
	possible.Store(true)
	return n
}

// begin makes the bridge, and tries all that a machine needs.
func (n *Network) begin() error {
	if err := run(nil, "ip", lines("link add "+bridge+" type bridge", "address add "+prefix+"1"+mask+" dev "+bridge, "link set "+bridge+" up")); err != nil {
		return err
	}
	n.remove(bridge)
	probe, err := n.machine()
	for _, rate := range []string{"1mbit", ""} {
		if err == nil {
			err = probe.narrow(rate)
		}
	}
	for _, on := range []bool{true, false} {
		if err == nil {
			err = probe.drop(ingress, on, nil)
		}
	}
	return err
}

// remove takes an interface away at the end of the test.
func (n *Network) remove(name string) {
	n.Cleanup(func() {
		if err := run(nil, "ip", lines("link delete "+name)); err != nil {
			n.Error(err)
		}
	})
}

// Machine adds one.
func (n *Network) Machine() *Machine {
	n.Helper()
	m, err := n.machine()
	if err != nil {
		n.Fatal(err)
	}
	return m
}

func (n *Network) machine() (*Machine, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	m := &Machine{Network: n, number: n.count, port: fmt.Sprint("port", n.count)}
	if m.number > machines {
		return nil, errors.New("too many machines")
	}
	err := apart(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			m.space, err = os.Open("/proc/thread-self/ns/net")
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	n.Cleanup(func() { m.space.Close() })
	// A child's first file is the namespace.
	if err := run(nil, "ip", lines("link add "+m.port+" type veth peer name "+card+" netns /proc/self/fd/3"), m.space); err != nil {
		return nil, err
	}
	n.remove(m.port)
	if err := run(m, "ip", lines("link set lo up", "address add "+m.Address()+mask+" dev "+card, "link set "+card+" up")); err != nil {
		return nil, err
	}
	if err := run(nil, "ip", lines("link set "+m.port+" master "+bridge+" up")); err != nil {
		return nil, err
	}
	return m, run(nil, "tc", lines("qdisc add dev "+m.port+" clsact"))
}

// Address is the machine's.
func (m *Machine) Address() string { return fmt.Sprint(prefix, 1+m.number) }

// IP is Address, parsed.
func (m *Machine) IP() net.IP { return net.ParseIP(m.Address()) }

// Start starts a process on the machine; on that of the test if m is nil.
func (m *Machine) Start(c *exec.Cmd) error {
	return m.Do(c.Start)
}

// Do calls a function on a thread of the machine: sockets that it makes are the machine's for good. A goroutine that it starts is not there.
func (m *Machine) Do(f func() error) error {
	if m == nil {
		return f()
	}
	return apart(func() error {
		if err := unix.Setns(int(m.space.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("go to a machine: %w", err)
		}
		return f()
	})
}

// apart calls a function on a thread that nothing else uses afterwards.
func apart(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

func lines(text ...string) string { return strings.Join(text, "\n") + "\n" }

// run runs ip or tc on a machine, or beside the bridge, with lines for it to carry out.
func run(on *Machine, name, batch string, files ...*os.File) error {
	c := exec.Command(program(name), "-batch", "-") //nolint:noctx // also when the test has ended
	c.Stdin, c.ExtraFiles = strings.NewReader(batch), files
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	err := on.Start(c)
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, batch, err, strings.TrimSpace(out.String()))
	}
	return nil
}
