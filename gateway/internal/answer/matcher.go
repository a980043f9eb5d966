package answer

import "strings"

// matcher looks for the first of several texts in a stream of bytes. What may become one of them is held back.
type matcher struct {
	texts []string
	held  []byte
	free  []byte
}

// feed takes the next byte. It gives the bytes that are certain not to begin one of the texts, good until the next call, and the text that is found, or "".
func (m *matcher) feed(b byte) (free []byte, found string) {
	m.held = append(m.held, b)
	n, whole := 0, ""
	for ; n < len(m.held); n++ {
		var begins bool
		if begins, whole = m.at(string(m.held[n:])); begins {
			break
		}
	}
	m.free = append(m.free[:0], m.held[:n]...)
	if whole != "" {
		n = len(m.held)
	}
	m.held = append(m.held[:0], m.held[n:]...)
	return m.free, whole
}

// at says whether a text begins with start, and which text is start.
func (m *matcher) at(start string) (begins bool, whole string) {
	for _, t := range m.texts {
		if strings.HasPrefix(t, start) {
			if len(t) == len(start) {
				return true, t
			}
			begins = true
		}
	}
	return begins, ""
}
