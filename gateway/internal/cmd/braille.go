package cmd

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// The size of a curve in the terminal, in characters; each has two by four dots.
const (
	curveWidth  = 64
	curveHeight = 6
)

// drawCurve draws the numbers of a series over its steps in Braille characters. Numbers that are none are left out.
func drawCurve(w io.Writer, steps []int64, values []*float64) {
	type point struct{ x, y float64 }
	var points []point
	low, high := math.Inf(1), math.Inf(-1)
	for i, v := range values {
		if v == nil || i >= len(steps) || math.IsNaN(*v) || math.IsInf(*v, 0) {
			continue
		}
		points = append(points, point{float64(steps[i]), *v})
		low, high = math.Min(low, *v), math.Max(high, *v)
	}
	if len(points) == 0 {
		fmt.Fprintln(w, "  no numbers")
		return
	}
	var dots [curveHeight][curveWidth]byte
	first, last := points[0].x, points[len(points)-1].x
	place := func(v, from, to float64, size int) int {
		if to <= from {
			return size / 2
		}
		return min(max(int(math.Round((v/2-from/2)/(to/2-from/2)*float64(size-1))), 0), size-1) // halves, for numbers near the largest
	}
	set := func(x, y int) {
		y = 4*curveHeight - 1 - y
		dots[y/4][x/2] |= brailleDots[y%4][x%2]
	}
	beforeX, beforeY := -1, -1
	for _, p := range points {
		x, y := place(p.x, first, last, 2*curveWidth), place(p.y, low, high, 4*curveHeight)
		if beforeX < 0 {
			beforeX, beforeY = x, y
		}
		n := max(x-beforeX, abs(y-beforeY), 1)
		for i := range n + 1 { // the line from the point before
			set(beforeX+(x-beforeX)*i/n, beforeY+(y-beforeY)*i/n)
		}
		beforeX, beforeY = x, y
	}
	for row := range dots {
		label := ""
		switch row {
		case 0:
			label = axisLabel(high)
		case curveHeight - 1:
			label = axisLabel(low)
		}
		var line strings.Builder
		for _, d := range dots[row] {
			line.WriteRune('⠀' + rune(d))
		}
		fmt.Fprintf(w, "%11s ┤%s\n", label, strings.TrimRight(line.String(), "⠀"))
	}
	left, right := strconv.FormatFloat(first, 'f', 0, 64), strconv.FormatFloat(last, 'f', 0, 64)
	fmt.Fprintf(w, "%11s  %s%*s\n", "", left, max(curveWidth-len(left), len(right)+1), right)
}

// brailleDots are the bits of a character's dots, from the top.
var brailleDots = [4][2]byte{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

func axisLabel(v float64) string { return strconv.FormatFloat(v, 'g', 5, 64) }

func abs(n int) int { return max(n, -n) }
