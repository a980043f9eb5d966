package grammar

// maskCaches is what is remembered of masks. Whether something is there changes how long an answer takes and nothing else.
type maskCaches struct {
	threads generations[thread, *threadMask]
	lexes   generations[lexState, *lexMask]
	rests   generations[configID, restMask]
	wide    generations[term, *wideMask]
}

// Bytes that each generation may hold.
const (
	threadMaskBytes = 2 << 20
	lexMaskBytes    = 3 << 20
	restMaskBytes   = 1 << 20
	wideOwnBytes    = 2 << 20
)

func newMaskCaches() maskCaches {
	return maskCaches{
		threads: generations[thread, *threadMask]{limit: threadMaskBytes},
		lexes:   generations[lexState, *lexMask]{limit: lexMaskBytes},
		rests:   generations[configID, restMask]{limit: restMaskBytes},
		wide:    generations[term, *wideMask]{limit: wideOwnBytes},
	}
}

func (m *maskCaches) size() int {
	return m.threads.size() + m.lexes.size() + m.rests.size() + m.wide.size()
}

// generations is a cache that forgets what was not asked for since its young half was last full.
type generations[K comparable, V any] struct {
	limit              int
	young, old         map[K]sized[V]
	youngSize, oldSize int
}

type sized[V any] struct {
	value V
	size  int
}

func (g *generations[K, V]) get(k K) (V, bool) {
	if v, ok := g.young[k]; ok {
		return v.value, true
	}
	v, ok := g.old[k]
	if ok {
		g.put(k, v.value, v.size)
	}
	return v.value, ok
}

func (g *generations[K, V]) put(k K, v V, size int) {
	if g.young == nil || g.youngSize+size > g.limit {
		g.old, g.oldSize = g.young, g.youngSize
		g.young, g.youngSize = make(map[K]sized[V]), 0
	}
	g.young[k] = sized[V]{v, size}
	g.youngSize += size
}

func (g *generations[K, V]) size() int { return g.youngSize + g.oldSize }
