package grammar

import (
	"encoding/binary"
	"math"
)

// utf8Table is the automaton that reads the bytes of one code point and ends with its class. State 0 is before a code point; the others are within one.
type utf8Table struct {
	next  [][256]int32 // a state within, ^class at the end, or invalidByte
	reach [][]int32    // from a state within, the classes that can still come
	part  *partition
	index map[string]int32

	column [256]uint8 // bytes that no state tells apart have one column
	bytes  []byte     // one byte of each column
}

const invalidByte = math.MinInt32

func newUTF8Table(p *partition) *utf8Table {
	u := &utf8Table{part: p, index: make(map[string]int32)}
	u.next = append(u.next, [256]int32{})
	u.reach = append(u.reach, nil)
	for b := range 256 {
		v := int32(invalidByte)
		switch {
		case b < 0x80:
			v = ^p.ascii[b]
		case b >= 0xc2 && b < 0xe0:
			v = u.block(rune(b&0x1f)<<6, 1, 0x80)
		case b >= 0xe0 && b < 0xf0:
			v = u.block(rune(b&0x0f)<<12, 2, 0x800)
		case b >= 0xf0 && b < 0xf5:
			v = u.block(rune(b&0x07)<<18, 3, 0x10000)
		}
		u.next[0][b] = v
	}
	u.findColumns()
	return u
}

// block gives the state that reads the low bits, six in each of n bytes, of the code points from lo on; those below least are overlong.
func (u *utf8Table) block(lo rune, n int, least rune) int32 {
	hi := lo + 1<<(6*n) - 1
	if hi < least || lo > maxRune {
		return invalidByte
	}
	uniform := lo >= least && hi <= maxRune && u.part.interval(lo) == u.part.interval(hi)
	if n == 0 || uniform {
		class := u.part.classOf(lo)
		if class == noClass {
			return invalidByte
		}
		v := ^class
		for range n {
			var children [64]int32
			for i := range children {
				children[i] = v
			}
			v = u.state(children)
		}
		return v
	}
	var children [64]int32
	for i := range children {
		children[i] = u.block(lo+rune(i)<<(6*(n-1)), n-1, least)
	}
	return u.state(children)
}

// state is the state behind which the continuation bytes lead to children; invalidByte if they all are.
func (u *utf8Table) state(children [64]int32) int32 {
	var key [256]byte
	valid := false
	for i, v := range children {
		binary.LittleEndian.PutUint32(key[4*i:], uint32(v))
		valid = valid || v != invalidByte
	}
	if !valid {
		return invalidByte
	}
	if s, ok := u.index[string(key[:])]; ok {
		return s
	}
	var row [256]int32
	for i := range row {
		row[i] = invalidByte
	}
	var reach []int32
	seen := make(map[int32]bool)
	add := func(class int32) {
		if !seen[class] {
			seen[class] = true
			reach = append(reach, class)
		}
	}
	for i, v := range children {
		row[0x80+i] = v
		switch {
		case v == invalidByte:
		case v < 0:
			add(^v)
		default:
			for _, class := range u.reach[v] {
				add(class)
			}
		}
	}
	s := int32(len(u.next))
	u.next = append(u.next, row)
	u.reach = append(u.reach, reach)
	u.index[string(key[:])] = s
	return s
}

func (u *utf8Table) findColumns() {
	u.index = nil
	seen := make(map[string]uint8)
	key := make([]byte, 4*len(u.next))
	for b := range 256 {
		for s := range u.next {
			binary.LittleEndian.PutUint32(key[4*s:], uint32(u.next[s][b]))
		}
		c, ok := seen[string(key)]
		if !ok {
			c = uint8(len(u.bytes))
			seen[string(key)] = c
			u.bytes = append(u.bytes, byte(b))
		}
		u.column[b] = c
	}
}
