package answer

// scanner follows one JSON value byte by byte and finds its end. Strict, it refuses what cannot be JSON outside of strings and newlines inside of them; else
// it only counts brackets, so that the end of a malformed value is found where a reader would see it.
type scanner struct {
	strict  bool
	kind    byte // '{', '[', '"', or 's' for a number or a word; 0 before the first byte
	nested  []byte
	depth   int
	quoted  bool
	escaped bool
}

// scanned says where a scanner stands.
type scanned uint8

const (
	within  scanned = iota // the value goes on
	ended                  // it ended with this byte
	before                 // it ended before this byte
	invalid                // this byte cannot be
)

// feed takes the next byte; the first one is no white space.
func (s *scanner) feed(b byte) scanned {
	switch {
	case s.kind == 0:
		return s.begin(b)
	case s.quoted:
		return s.inString(b)
	case s.kind == 's':
		if isSpace(b) || b == ',' || b == '}' || b == ']' || b == '<' || b == ';' {
			return before
		}
		if s.strict && !isWord(b) {
			return invalid
		}
		return within
	}
	switch b {
	case '"':
		s.quoted = true
	case '{', '[':
		s.open(b)
	case '}', ']':
		return s.close(b)
	default:
		if s.strict && !isSpace(b) && b != ',' && b != ':' && !isWord(b) {
			return invalid
		}
	}
	return within
}

// begin takes the first byte.
func (s *scanner) begin(b byte) scanned {
	switch b {
	case '{', '[':
		s.open(b)
		s.kind = b
	case '"':
		s.kind, s.quoted = b, true
	default:
		if s.strict && !isWord(b) || b == ',' || b == '}' || b == ']' {
			return invalid
		}
		s.kind = 's'
	}
	return within
}

func (s *scanner) inString(b byte) scanned {
	switch {
	case s.escaped:
		s.escaped = false
	case b == '\\':
		s.escaped = true
	case b == '"':
		s.quoted = false
		if s.kind == '"' {
			return ended
		}
	case s.strict && (b == '\n' || b == '\r'):
		return invalid
	}
	return within
}

func (s *scanner) open(b byte) {
	s.depth++
	if s.strict {
		s.nested = append(s.nested, b)
	}
}

func (s *scanner) close(b byte) scanned {
	if s.strict {
		if top := s.nested[len(s.nested)-1]; (top == '{') != (b == '}') {
			return invalid
		}
		s.nested = s.nested[:len(s.nested)-1]
	}
	s.depth--
	if s.depth == 0 {
		return ended
	}
	return within
}

// outside says whether the next byte is inside an object or a list and not in a string of it, where a tag can stand.
func (s *scanner) outside() bool { return s.depth > 0 && !s.quoted }

func isSpace(b byte) bool {
	return b == ' ' || b == '\n' || b == '\t' || b == '\r' || b == '\v' || b == '\f'
}

// isWord says whether a byte can be part of a number, true, false or null, or the like.
func isWord(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '-' || b == '+' || b == '.'
}
