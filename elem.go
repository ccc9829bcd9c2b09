package weft

import (
	"fmt"
	"hash/fnv"
	"reflect"
	"sync"
	"sync/atomic"
)

// elem is what is known of an element type.
type elem struct {
	typ  reflect.Type
	at   uintptr // see elemOf
	size int
	hash uint32 // of the layout, never zero; goes with every message
	err  error  // why the type cannot be sent, or nil
}

// elems caches elem by type: a direct-mapped table first, because the hot path
// has no time for a map, and a map behind it.
var (
	elemCache [256]atomic.Pointer[elem]
	elemMap   sync.Map // reflect.Type -> *elem
	elemNames sync.Map // hash -> string, to name a peer's type in errors
)

func elemOf[T any]() *elem {
	pointer := any((*T)(nil))
	at := typeAddress(pointer) // what package reflect has for T takes longer
	if e := elemCache[at>>5%uintptr(len(elemCache))].Load(); e != nil && e.at == at {
		return e
	}
	return lookupElem(pointer, at)
}

// lookupElem finds what elemOf does not have at hand, and puts it there.
func lookupElem(pointer any, at uintptr) *elem {
	e := elemOfType(reflect.TypeOf(pointer).Elem(), at)
	elemCache[at>>5%uintptr(len(elemCache))].Store(e)
	return e
}

func elemOfType(typ reflect.Type, at uintptr) *elem {
	if e, ok := elemMap.Load(typ); ok {
		return e.(*elem)
	}
	e := &elem{typ: typ, at: at, size: int(typ.Size())}
	h := fnv.New32a()
	describe := func(s string) { h.Write([]byte(s)) }
	if bad := layout(typ, describe); bad != "" {
		e.err = fmt.Errorf("%w: %v %s", ErrElemType, typ, bad)
	} else if e.size == 0 {
		e.err = fmt.Errorf("%w: %v has no size; send a []byte of length 0 for a bare signal", ErrElemType, typ)
	}
	e.hash = max(h.Sum32(), 1)
	actual, _ := elemMap.LoadOrStore(typ, e)
	elemNames.LoadOrStore(e.hash, typ.String())
	return actual.(*elem)
}

// layout feeds a description of the type's memory to emit, independent of its
// name. It returns why the type cannot travel as bytes, or "".
func layout(typ reflect.Type, emit func(string)) (bad string) {
	switch kind := typ.Kind(); kind {
	case reflect.Bool, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		emit(kind.String() + ";")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		emit(fmt.Sprintf("i%d;", typ.Size()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		emit(fmt.Sprintf("u%d;", typ.Size()))
	case reflect.Array:
		emit(fmt.Sprintf("[%d]", typ.Len()))
		if bad := layout(typ.Elem(), emit); bad != "" {
			return "has elements of type " + typ.Elem().String() + ", which " + bad
		}
	case reflect.Struct:
		emit(fmt.Sprintf("{%d:", typ.Size()))
		for i := range typ.NumField() {
			f := typ.Field(i)
			emit(fmt.Sprintf("%d ", f.Offset))
			if bad := layout(f.Type, emit); bad != "" {
				return "has a field " + f.Name + " of type " + f.Type.String() + ", which " + bad
			}
		}
		emit("}")
	default:
		return "holds a " + kind.String() + ", which means nothing in another process; use SendValue for it"
	}
	return ""
}

// typeName names a layout that a peer sent, if this process knows it.
func typeName(hash uint32) string {
	if name, ok := elemNames.Load(hash); ok {
		return name.(string)
	}
	return fmt.Sprintf("a type unknown here (layout %08x)", hash)
}
