package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats a time as Python's datetime.strftime does in the C locale. A directive that is not known stays as it is written.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	hour12 := (t.Hour()+11)%12 + 1
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		start := i
		i++
		// glibc's flags: no padding, spaces, zeros, upper case, swapped case.
		flag := byte(0)
		for i < len(format)-1 && strings.IndexByte("-_0^#", format[i]) >= 0 {
			flag = format[i]
			i++
		}
		number := func(n, width int, pad byte) {
			switch flag {
			case '-':
				width = 0
			case '_':
				pad = ' '
			case '0':
				pad = '0'
			}
			s := fmt.Sprint(n)
			if len(s) < width {
				s = strings.Repeat(string(pad), width-len(s)) + s
			}
			b.WriteString(s)
		}
		word := func(s string) {
			if flag == '^' || flag == '#' {
				s = strings.ToUpper(s)
			}
			b.WriteString(s)
		}
		switch format[i] {
		case 'a':
			word(t.Format("Mon"))
		case 'A':
			word(t.Format("Monday"))
		case 'b', 'h':
			word(t.Format("Jan"))
		case 'B':
			word(t.Format("January"))
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 'C':
			number(t.Year()/100, 2, '0')
		case 'd':
			number(t.Day(), 2, '0')
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'e':
			number(t.Day(), 2, ' ')
		case 'f':
			number(t.Nanosecond()/1000, 6, '0')
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'g':
			year, _ := t.ISOWeek()
			number(year%100, 2, '0')
		case 'G':
			year, _ := t.ISOWeek()
			number(year, 4, '0')
		case 'H':
			number(t.Hour(), 2, '0')
		case 'I':
			number(hour12, 2, '0')
		case 'j':
			number(t.YearDay(), 3, '0')
		case 'k':
			number(t.Hour(), 2, ' ')
		case 'l':
			number(hour12, 2, ' ')
		case 'm':
			number(int(t.Month()), 2, '0')
		case 'M':
			number(t.Minute(), 2, '0')
		case 'n':
			b.WriteByte('\n')
		case 'p':
			if flag == '#' {
				b.WriteString(t.Format("pm"))
			} else {
				word(t.Format("PM"))
			}
		case 'P':
			b.WriteString(t.Format("pm"))
		case 'r':
			b.WriteString(t.Format("03:04:05 PM"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 's':
			b.WriteString(fmt.Sprint(t.Unix()))
		case 'S':
			number(t.Second(), 2, '0')
		case 't':
			b.WriteByte('\t')
		case 'T', 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'u':
			number((int(t.Weekday())+6)%7+1, 1, '0')
		case 'U':
			number((t.YearDay()+6-int(t.Weekday()))/7, 2, '0')
		case 'V':
			_, week := t.ISOWeek()
			number(week, 2, '0')
		case 'w':
			number(int(t.Weekday()), 1, '0')
		case 'W':
			number((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2, '0')
		case 'y':
			number(t.Year()%100, 2, '0')
		case 'Y':
			number(t.Year(), 1, '0')
		case 'z', 'Z':
			// datetime.now() has no time zone: Python prints nothing for these.
		case '%':
			b.WriteByte('%')
		default:
			b.WriteString(format[start : i+1])
		}
	}
	return b.String()
}
