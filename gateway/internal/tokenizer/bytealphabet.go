package tokenizer

import "unicode/utf8"

// byteToRune is the byte-level alphabet of GPT-2: printable Latin-1 bytes stand
// for themselves, the other 68 are the characters from U+0100 on.
var byteToRune = func() (table [256]rune) {
	next := rune(256)
	for b := range rune(256) {
		if '!' <= b && b <= '~' || 0xA1 <= b && b <= 0xAC || 0xAE <= b && b <= 0xFF {
			table[b] = b
			continue
		}
		table[b] = next
		next++
	}
	return table
}()

// runeToByte is its inverse, -1 for characters outside the alphabet.
var runeToByte = func() (table [256 + 68]int16) {
	for i := range table {
		table[i] = -1
	}
	for b, r := range byteToRune {
		table[r] = int16(b)
	}
	return table
}()

// mapBytes appends s in the byte-level alphabet.
func mapBytes(out []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		out = utf8.AppendRune(out, byteToRune[s[i]])
	}
	return out
}

// unmapBytes appends the bytes that s stands for, and reports whether every
// character of s belongs to the alphabet; if not, out is returned unchanged.
func unmapBytes(out []byte, s string) ([]byte, bool) {
	before := len(out)
	for _, r := range s {
		if int(r) >= len(runeToByte) || runeToByte[r] < 0 {
			return out[:before], false
		}
		out = append(out, byte(runeToByte[r]))
	}
	return out, true
}

// validText replaces every byte of s that is not part of UTF-8 by U+FFFD, so
// that all that follows may rely on whole characters.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// appendLossy appends b as text: each longest wrong sequence of bytes becomes
// one U+FFFD, as the Unicode Standard recommends and the reference does.
func appendLossy(out []byte, b []byte) []byte {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			size, _ = truncatedRune(b)
			out = utf8.AppendRune(out, utf8.RuneError)
		} else {
			out = append(out, b[:size]...)
		}
		b = b[size:]
	}
	return out
}

// truncatedRune looks at bytes that do not begin with a whole character. It
// returns the length of the longest start of a character, at least 1, and
// whether b ends there, so that more bytes could complete it.
func truncatedRune(b []byte) (size int, open bool) {
	first := b[0]
	lo, hi, need := byte(0x80), byte(0xBF), 0
	switch {
	case 0xC2 <= first && first <= 0xDF:
		need = 1
	case 0xE0 <= first && first <= 0xEF:
		need = 2
		if first == 0xE0 {
			lo = 0xA0
		} else if first == 0xED {
			hi = 0x9F
		}
	case 0xF0 <= first && first <= 0xF4:
		need = 3
		if first == 0xF0 {
			lo = 0x90
		} else if first == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1, false
	}
	size = 1
	for size <= need {
		if size == len(b) {
			return size, true
		}
		if b[size] < lo || b[size] > hi {
			return size, false
		}
		lo, hi = 0x80, 0xBF
		size++
	}
	return size, false
}
