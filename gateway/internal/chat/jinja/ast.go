package jinja

// expr is an expression of the syntax tree. Every node keeps its line.
type expr interface{ lineNo() int }

// stmt is a statement of the syntax tree.
type stmt interface{ lineNo() int }

type position int

func (p position) lineNo() int { return int(p) }

type (
	constExpr struct {
		position
		value Value
	}
	// nameExpr reads a variable; ref is where it lives, found by the resolver.
	nameExpr struct {
		position
		name string
		ref  ref
	}
	// attrTarget is ns.attr on the left of a set.
	attrTarget struct {
		position
		name, attr string
	}
	tupleExpr struct {
		position
		items []expr
	}
	listExpr struct {
		position
		items []expr
	}
	dictExpr struct {
		position
		keys, values []expr
	}
	// condExpr is "then if test else otherwise"; otherwise may be nil.
	condExpr struct {
		position
		test, then, otherwise expr
	}
	binaryExpr struct {
		position
		op          string
		left, right expr
	}
	// logicExpr is "and" or "or".
	logicExpr struct {
		position
		isOr        bool
		left, right expr
	}
	notExpr struct {
		position
		operand expr
	}
	signExpr struct {
		position
		negative bool
		operand  expr
	}
	// compareExpr is a chain: first ops[0] rest[0] ops[1] rest[1] ...
	compareExpr struct {
		position
		first expr
		ops   []string
		rest  []expr
	}
	concatExpr struct {
		position
		parts []expr
	}
	attrExpr struct {
		position
		object expr
		attr   string
	}
	itemExpr struct {
		position
		object, key expr
	}
	// sliceExpr is a key; each part may be nil.
	sliceExpr struct {
		position
		start, stop, step expr
	}
	arguments struct {
		args     []expr
		names    []string
		values   []expr
		starArgs expr
		starKeys expr
	}
	callExpr struct {
		position
		function expr
		arguments
	}
	// filterExpr has a nil operand in filter blocks and set blocks, where the block's text is the operand.
	filterExpr struct {
		position
		operand expr
		name    string
		arguments
		filter filterFunc
	}
	testExpr struct {
		position
		operand expr
		name    string
		arguments
		test testFunc
	}
)

type (
	textStmt struct {
		position
		text string
	}
	printStmt struct {
		position
		value expr
	}
	ifStmt struct {
		position
		// tests[i] guards bodies[i]: if, then each elif.
		tests     []expr
		bodies    [][]stmt
		otherwise []stmt
	}
	forStmt struct {
		position
		target          expr
		iterable        expr
		test            expr
		recursive       bool
		body, otherwise []stmt
		// Below: found by the resolver. bodyTarget and testTarget are the same target, assigned in two different frames.
		bodyTarget, testTarget          target
		loopSlot                        ref
		bodyFrame, testFrame, elseFrame *frame
		testFunction, recursiveFunction *function
	}
	setStmt struct {
		position
		target expr
		value  expr
		bound  target
	}
	setBlockStmt struct {
		position
		target expr
		filter *filterExpr
		body   []stmt
		bound  target
		frame  *frame
	}
	// macroBody is what a macro and the body of a call block have in common.
	macroBody struct {
		params   []string
		defaults []expr // for the last parameters
		body     []stmt
		// Below: found by the resolver.
		function                                    *function
		frame                                       *frame
		slots                                       []ref
		wantsCaller, wantsKeywords, wantsPositional bool
		callerSlot, keywordsSlot, positionalSlot    ref
	}
	macroStmt struct {
		position
		name  string
		macro *macroBody
		bound target
	}
	callStmt struct {
		position
		call  *callExpr
		macro *macroBody
	}
	// generationStmt marks the assistant's text for training masks. It prints its body, in a scope of its own.
	generationStmt struct {
		position
		macro *macroBody
	}
	filterStmt struct {
		position
		filter *filterExpr
		body   []stmt
		frame  *frame
	}
	withStmt struct {
		position
		targets []expr
		values  []expr
		body    []stmt
		bound   []target
		frame   *frame
	}
	breakStmt    struct{ position }
	continueStmt struct{ position }
)

// argumentExprs lists the expressions of a call's arguments.
func (a *arguments) exprs() []expr {
	out := append(append([]expr{}, a.args...), a.values...)
	if a.starArgs != nil {
		out = append(out, a.starArgs)
	}
	if a.starKeys != nil {
		out = append(out, a.starKeys)
	}
	return out
}

// children lists the direct subexpressions of e in the order in which they are written.
func children(e expr) []expr {
	switch e := e.(type) {
	case *tupleExpr:
		return e.items
	case *listExpr:
		return e.items
	case *dictExpr:
		out := make([]expr, 0, 2*len(e.keys))
		for i, key := range e.keys {
			out = append(out, key, e.values[i])
		}
		return out
	case *condExpr:
		return []expr{e.test, e.then, e.otherwise}
	case *binaryExpr:
		return []expr{e.left, e.right}
	case *logicExpr:
		return []expr{e.left, e.right}
	case *notExpr:
		return []expr{e.operand}
	case *signExpr:
		return []expr{e.operand}
	case *compareExpr:
		return append([]expr{e.first}, e.rest...)
	case *concatExpr:
		return e.parts
	case *attrExpr:
		return []expr{e.object}
	case *itemExpr:
		return []expr{e.object, e.key}
	case *sliceExpr:
		return []expr{e.start, e.stop, e.step}
	case *callExpr:
		return append([]expr{e.function}, e.exprs()...)
	case *filterExpr:
		return append([]expr{e.operand}, e.exprs()...)
	case *testExpr:
		return append([]expr{e.operand}, e.exprs()...)
	}
	return nil
}
