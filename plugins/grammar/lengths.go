package grammar

// Looking for a text of a length of many characters goes through as many derivatives, each with another counter. Where a language is cut by a length alone the
// counter is left out: the language's own derivatives are a graph, and which lengths its ways have is a question of numbers.

const (
	longLength       = 64      // from how many characters on lengths are looked at like that
	maxLengthNodes   = 500     // of one graph
	maxLengthWords   = 1 << 18 // of what is known of one graph's exact lengths
	lengthEdgesAStep = 64      // edges that take about as long as one step
)

// lengthGraph is the derivatives of a language that no length bounds.
type lengthGraph struct {
	edges    [][]int32 // of each node, where one more character leads, each once
	longest  []int32   // of each node the longest way to an end: endless, -1 if there is none
	shortest []int32   // likewise
	words    int       // of a set of nodes
	exactly  [][]uint64
}

// lengthPlace is a term's place in a graph; the graph is nil if it would be too large.
type lengthPlace struct {
	graph *lengthGraph
	node  int32
}

// liveByLength is live for a language cut by a large least length; ok is false for others, and where the graph is too large.
func (d *deriver) liveByLength(x term) (live, ok bool) {
	t := d.terms
	if t.nodes[x].kind != kindIntersect {
		return false, false
	}
	low, high := int32(0), int32(unbounded)
	var others []term
	for _, y := range t.operands(t.nodes[x]) {
		if n := t.nodes[y]; n.kind == kindRepeat && term(n.a) == anyChar && n.b > longLength {
			low, high = n.b, n.c
		} else {
			others = append(others, y)
		}
	}
	if low == 0 {
		return false, false
	}
	rest := t.intersect(others...)
	place, known := d.lengths[rest]
	if !known {
		place = d.newLengthGraph(rest)
		if d.exhausted() {
			return true, true
		}
	}
	if place.graph == nil {
		return false, false
	}
	return d.reaches(place, low, high)
}

// newLengthGraph makes the graph of the derivatives of a term, and remembers all their places.
func (d *deriver) newLengthGraph(root term) lengthPlace {
	if d.lengths == nil {
		d.lengths = map[term]lengthPlace{}
	}
	at := map[term]int32{root: 0}
	nodes := []term{root}
	g := &lengthGraph{}
	for i := 0; i < len(nodes); i++ {
		var edges []int32
		first := d.first(nodes[i])
		for class := int32(0); class < d.part.count(); class++ {
			if !first.has(class) {
				continue
			}
			y := d.derive(nodes[i], class)
			if d.exhausted() {
				return lengthPlace{}
			}
			if y == nothing {
				continue
			}
			to, ok := at[y]
			if !ok {
				if len(nodes) == maxLengthNodes {
					for y := range at { // nor will theirs be small
						d.lengths[y] = lengthPlace{}
					}
					return lengthPlace{}
				}
				to = int32(len(nodes))
				at[y] = to
				nodes = append(nodes, y)
			}
			if !containsNode(edges, to) {
				edges = append(edges, to)
			}
		}
		g.edges = append(g.edges, edges)
	}
	ends := make([]uint64, (len(nodes)+63)/64)
	for i, y := range nodes {
		if d.terms.nullable(y) {
			ends[i>>6] |= 1 << (i & 63)
		}
	}
	g.words, g.exactly = len(ends), [][]uint64{ends}
	g.measure()
	edges := 0
	for _, list := range g.edges {
		edges += len(list)
	}
	d.steps += (len(nodes) + edges) / lengthEdgesAStep
	d.lengthBytes += 96*len(nodes) + 4*edges
	for y, i := range at {
		d.lengths[y] = lengthPlace{g, i}
	}
	return lengthPlace{g, 0}
}

func containsNode(list []int32, node int32) bool {
	for _, n := range list {
		if n == node {
			return true
		}
	}
	return false
}

// measure finds the shortest and longest ways: the former from the ends back, the latter in the order in which nodes have no way to go but to such as are known.
func (g *lengthGraph) measure() {
	n := len(g.edges)
	back := make([][]int32, n)
	for i, edges := range g.edges {
		for _, to := range edges {
			back[to] = append(back[to], int32(i))
		}
	}
	g.shortest, g.longest = make([]int32, n), make([]int32, n)
	var queue []int32
	for i := range n {
		g.shortest[i], g.longest[i] = -1, -1
		if g.exactly[0][i>>6]>>(i&63)&1 != 0 {
			g.shortest[i], g.longest[i] = 0, 0
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		for _, b := range back[i] {
			if g.shortest[b] < 0 {
				g.shortest[b] = g.shortest[i] + 1
				queue = append(queue, b)
			}
		}
	}
	open := make([]int32, n) // edges to nodes from which an end is reached and whose longest way is not known
	for i, edges := range g.edges {
		for _, to := range edges {
			if g.shortest[to] >= 0 {
				open[i]++
			}
		}
		if open[i] == 0 && g.shortest[i] >= 0 {
			queue = append(queue, int32(i))
		}
	}
	done := make([]bool, n)
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		done[i] = true
		for _, b := range back[i] {
			g.longest[b] = max(g.longest[b], g.longest[i]+1)
			if open[b]--; open[b] == 0 {
				queue = append(queue, b)
			}
		}
	}
	for i := range n { // what is left goes round
		if !done[i] && g.shortest[i] >= 0 {
			g.longest[i] = endless
		}
	}
}

// reaches tells whether a way from a place to an end has a length from low up to high. ok is false if it takes too much memory to find out.
func (d *deriver) reaches(at lengthPlace, low, high int32) (yes, ok bool) {
	g, i := at.graph, at.node
	switch {
	case g.shortest[i] < 0 || g.longest[i] < low || high >= 0 && g.shortest[i] > high:
		return false, true
	case high < 0 || g.shortest[i] >= low || g.longest[i] <= high:
		return true, true
	}
	for k := low; k <= high; k++ {
		if !d.extend(g, k) {
			return false, false
		}
		if d.exhausted() {
			return true, true
		}
		if g.exactly[k][i>>6]>>(i&63)&1 != 0 {
			return true, true
		}
	}
	return false, true
}

// extend finds from which nodes an end is reached by exactly k characters.
func (d *deriver) extend(g *lengthGraph, k int32) bool {
	for int32(len(g.exactly)) <= k {
		if (len(g.exactly)+1)*g.words > maxLengthWords {
			return false
		}
		if d.exhausted() {
			return true
		}
		last := g.exactly[len(g.exactly)-1]
		next := make([]uint64, g.words)
		edges := 0
		for i, list := range g.edges {
			edges += len(list)
			for _, to := range list {
				if last[to>>6]>>(to&63)&1 != 0 {
					next[i>>6] |= 1 << (i & 63)
					break
				}
			}
		}
		d.steps += 1 + edges/lengthEdgesAStep
		d.lengthBytes += 8 * g.words
		g.exactly = append(g.exactly, next)
	}
	return true
}
