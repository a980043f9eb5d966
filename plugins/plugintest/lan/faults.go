package lan

import (
	"encoding/binary"
	"fmt"
)

// Directions, as a port of the bridge sees them.
const (
	ingress = "ingress" // from its machine
	egress  = "egress"  // to its machine
)

// Mute has everything vanish that the machine sends, or what it sends to others that are named, from now on or no longer. Nobody is told: neither side
// gets an error, for the addresses of the hardware are still found.
func (m *Machine) Mute(on bool, to ...*Machine) { m.silence(ingress, on, to) }

// Deaf has everything vanish that is sent to the machine, or what those that are named send to it.
func (m *Machine) Deaf(on bool, to ...*Machine) { m.silence(egress, on, to) }

// Down takes the machine's own interface down, or up again: it has no route to anybody, and nobody finds it.
func (m *Machine) Down(on bool) {
	m.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	to := "up"
	if on {
		to = "down"
	}
	m.check(run(m, "ip", lines("link set "+card+" "+to)))
}

// Narrow has the machine send and get so many bits a second, as tc writes it: packets wait for each other. "" takes that back.
func (m *Machine) Narrow(rate string) {
	m.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.check(m.narrow(rate))
}

// Delays of netem are not everywhere; a bucket of tokens with room for one packet and a long queue is.
func (m *Machine) narrow(rate string) error {
	for _, end := range []struct {
		on   *Machine
		card string
	}{{m, card}, {nil, m.port}} {
		change := "qdisc replace dev " + end.card + " root tbf rate " + rate + " burst 1600 limit 200000"
		if rate == "" {
			change = "qdisc delete dev " + end.card + " root"
		}
		if err := run(end.on, "tc", lines(change)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) silence(direction string, on bool, with []*Machine) {
	m.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(with) == 0 {
		m.check(m.drop(direction, on, nil))
	}
	for _, other := range with {
		m.check(m.drop(direction, on, other))
	}
}

// drop has the bridge's port drop packets, all or those of another machine.
func (m *Machine) drop(direction string, on bool, other *Machine) error {
	preference, program := 1, []string{"6 0 0 2"} // TC_ACT_SHOT
	if other != nil {
		preference += other.number
		place := 26 // of the sender's address in a frame
		if direction == ingress {
			place = 30 // the receiver's
		}
		// Load the address; if it is not that one, the next instruction is left out, and the next filter asked (TC_ACT_UNSPEC).
		program = []string{fmt.Sprintf("32 0 0 %d", place), fmt.Sprintf("21 0 1 %d", binary.BigEndian.Uint32(other.IP().To4())), "6 0 0 2", "6 0 0 4294967295"}
	}
	// All IPv4, which leaves the questions of ARP.
	filter := fmt.Sprintf("dev %s %s pref %d protocol ip", m.port, direction, preference)
	if !on {
		return run(nil, "tc", lines("filter delete "+filter))
	}
	code := fmt.Sprint(len(program))
	for _, instruction := range program {
		code += "," + instruction
	}
	return run(nil, "tc", lines("filter add "+filter+` bpf da bytecode "`+code+`"`))
}

func (m *Machine) check(err error) {
	m.Helper()
	if err != nil {
		m.Error(err)
	}
}
