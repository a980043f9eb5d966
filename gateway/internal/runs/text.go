package runs

import "strconv"

// quote shows a client's text in a message: escaped, and cut so that a hostile one stays short.
func quote(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.Quote(s)
}

func itoa[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }
