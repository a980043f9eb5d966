package tokenizer

import "unicode/utf8"

// scanner finds the end of the match that starts at byte i of s, for a pattern
// that always matches where the last match ended. It stands in for a regular
// expression that is used so often that it is worth a function of its own.
type scanner func(s string, i int) int

// The patterns with a scanner. Each must give exactly what the expression
// gives; TestScannersEqualExpressions compares them.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternO200K  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// scannerFor returns the scanner for pattern, or nil.
func scannerFor(pattern string) scanner {
	kinds := loadUnicode().kinds
	switch pattern {
	case patternGPT2:
		return gpt2Scanner(kinds)
	case patternQwen2:
		return modernScanner(kinds, 1, kindLetter)
	case patternLlama3:
		return modernScanner(kinds, 3, kindLetter)
	case patternQwen35:
		return modernScanner(kinds, 1, kindLetter|kindMark)
	case patternO200K:
		return casedScanner(kinds)
	}
	return nil
}

// charAt returns the kind bits and the width of the character at s[i:]; width
// 0 and no bits at the end.
func charAt(kinds *runeTable, s string, i int) (uint8, int) {
	if i >= len(s) {
		return 0, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return kinds.blocks[kinds.index[0]][c], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return kinds.at(r), size
}

// run returns the end of the longest run from i of characters whose kind bits
// under mask are not empty, or, with want false, are empty.
func run(kinds *runeTable, s string, i int, mask uint8, want bool) int {
	ascii := &kinds.blocks[kinds.index[0]]
	for i < len(s) {
		if c := s[i]; c < utf8.RuneSelf {
			if (ascii[c]&mask != 0) != want {
				return i
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if (kinds.at(r)&mask != 0) != want {
			return i
		}
		i += size
	}
	return i
}

// spaces returns the end of the match of `\s+(?!\S)|\s+` at i, which is at a
// space: all but the last character of a run, unless text ends there.
func spaces(kinds *runeTable, s string, i, end int) int {
	if end == len(s) {
		return end
	}
	_, last := utf8.DecodeLastRuneInString(s[i:end])
	if end-last > i {
		return end - last
	}
	return end
}

// contraction returns the length of the match of 's|'t|'re|'ve|'m|'ll|'d at i,
// 0 if none. With fold, case is ignored as the reference's engine ignores it:
// U+017F (long s) is an s.
func contraction(s string, i int, fold bool) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return 0
	}
	a, b := s[i+1], byte(0)
	if i+2 < len(s) {
		b = s[i+2]
	}
	if fold {
		if a == 0xC5 && b == 0xBF {
			return 3
		}
		if 'A' <= a && a <= 'Z' {
			a += 'a' - 'A'
		}
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
	}
	switch a {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if b == 'e' {
			return 3
		}
	case 'l':
		if b == 'l' {
			return 3
		}
	}
	return 0
}

func gpt2Scanner(kinds *runeTable) scanner {
	return func(s string, i int) int {
		if n := contraction(s, i, false); n > 0 {
			return i + n
		}
		kind, size := charAt(kinds, s, i)
		start := i
		if s[i] == ' ' {
			if next, width := charAt(kinds, s, i+1); width > 0 && next&kindSpace == 0 {
				kind, size, start = next, width, i+1
			}
		}
		switch {
		case kind&kindLetter != 0:
			return run(kinds, s, start+size, kindLetter, true)
		case kind&kindNumber != 0:
			return run(kinds, s, start+size, kindNumber, true)
		case kind&kindSpace == 0:
			return run(kinds, s, start+size, kindSpace|kindLetter|kindNumber, false)
		}
		return spaces(kinds, s, i, run(kinds, s, i, kindSpace, true))
	}
}

// modernScanner serves the patterns of Llama 3 and of the Qwen families: digits
// is how many numbers stand together, letters which kinds make up a word.
func modernScanner(kinds *runeTable, digits int, letters uint8) scanner {
	return func(s string, i int) int {
		c := s[i]
		if n := contraction(s, i, true); n > 0 {
			return i + n
		}
		kind, size := charAt(kinds, s, i)
		if kind&(kindLetter|kindNumber) == 0 && c != '\r' && c != '\n' {
			if next, width := charAt(kinds, s, i+size); next&letters != 0 {
				return run(kinds, s, i+size+width, letters, true)
			}
		}
		if kind&letters != 0 {
			return run(kinds, s, i+size, letters, true)
		}
		if kind&kindNumber != 0 {
			return numbers(kinds, s, i+size, digits-1)
		}
		other := kindSpace | kindNumber | letters
		start := i
		if c == ' ' {
			if next, width := charAt(kinds, s, i+1); width > 0 && next&other == 0 {
				kind, size, start = next, width, i+1
			}
		}
		if kind&other == 0 {
			end := run(kinds, s, start+size, other, false)
			for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
				end++
			}
			return end
		}
		return lines(kinds, s, i)
	}
}

// numbers returns the end of up to so many more numbers from i.
func numbers(kinds *runeTable, s string, i, more int) int {
	for ; more > 0; more-- {
		next, width := charAt(kinds, s, i)
		if next&kindNumber == 0 {
			break
		}
		i += width
	}
	return i
}

// lines returns the end of the match of `\s*[\r\n]+|\s+(?!\S)|\s+` at i, which
// is at a space.
func lines(kinds *runeTable, s string, i int) int {
	end := run(kinds, s, i, kindSpace, true)
	for n := end; n > i; n-- {
		if s[n-1] == '\r' || s[n-1] == '\n' {
			return n
		}
	}
	return spaces(kinds, s, i, end)
}

// casedScanner serves the pattern of o200k, which cuts words where a capital
// follows a small letter.
func casedScanner(kinds *runeTable) scanner {
	return func(s string, i int) int {
		kind, size := charAt(kinds, s, i)
		prefix := kind&(kindLetter|kindNumber) == 0 && s[i] != '\r' && s[i] != '\n'
		word := -1
		for _, find := range []func(*runeTable, string, int) int{endingSmall, beginningLarge} {
			if prefix {
				word = find(kinds, s, i+size)
			}
			if word < 0 {
				word = find(kinds, s, i)
			}
			if word >= 0 {
				return word + contraction(s, word, true)
			}
		}
		if kind&kindNumber != 0 {
			return numbers(kinds, s, i+size, 2)
		}
		const other = kindSpace | kindLetter | kindNumber
		start := i
		if s[i] == ' ' {
			if next, width := charAt(kinds, s, i+1); width > 0 && next&other == 0 {
				kind, size, start = next, width, i+1
			}
		}
		if kind&other == 0 {
			end := run(kinds, s, start+size, other, false)
			for end < len(s) && (s[end] == '\r' || s[end] == '\n' || s[end] == '/') {
				end++
			}
			return end
		}
		return lines(kinds, s, i)
	}
}

// endingSmall returns the end of large letters and then at least one small one
// from i, -1 if there are none. What has no case is both: the large ones give
// back what the small one needs.
func endingSmall(kinds *runeTable, s string, i int) int {
	last := -1 // the end of the last of the large ones that is small too
	for {
		kind, width := charAt(kinds, s, i)
		if kind&kindUpper == 0 {
			if kind&kindLower != 0 {
				return run(kinds, s, i+width, kindLower, true)
			}
			return last
		}
		i += width
		if kind&kindLower != 0 {
			last = i
		}
	}
}

// beginningLarge returns the end of at least one large letter and then small
// ones from i, -1 if there are none.
func beginningLarge(kinds *runeTable, s string, i int) int {
	end := run(kinds, s, i, kindUpper, true)
	if end == i {
		return -1
	}
	return run(kinds, s, end, kindLower, true)
}
