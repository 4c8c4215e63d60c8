/* tpl_ast.h: the syntax tree of a template. Built by tpl_parse.c and tpl_parse_expr.c, immutable afterwards, so that any number of
 * threads may render it. Names are interned: within one template equal names are one pointer. */
#ifndef TANDEM_TEXT_TPL_AST_H
#define TANDEM_TEXT_TPL_AST_H

#include "text/tpl_value.h"

enum tpl_node_kind {
	/* expressions:         a            b           c          list                    name / constant / op */
	TPL_CONSTANT,        /*                                                             constant */
	TPL_NAME,            /*                                                             name */
	TPL_LIST_OF,         /*                                     items */
	TPL_TUPLE_OF,        /*                                     items; targets too */
	TPL_DICT_OF,         /*                                     key, value, key, ... */
	TPL_ATTR,            /* object                                                      name */
	TPL_ITEM,            /* object       key */
	TPL_SLICE,           /* object                              from, to, step (NONE constants where left out) */
	TPL_CALL,            /* function                            arguments */
	TPL_FILTER,          /* input                               arguments               name */
	TPL_TEST,            /* input                               arguments               name */
	TPL_CAPTURED,        /* the text of a filter block or set block */
	TPL_NOT,             /* operand */
	TPL_NEGATIVE,        /* operand */
	TPL_POSITIVE,        /* operand */
	TPL_BINARY,          /* left         right                                          op */
	TPL_AND,             /* left         right */
	TPL_OR,              /* left         right */
	TPL_CONCAT,          /*                                     operands of ~ */
	TPL_COMPARE,         /* first                               OPERAND nodes */
	TPL_OPERAND,         /* right                                                       op */
	TPL_CONDITION,       /* if true      test        else or NULL */
	/* arguments of calls */
	TPL_ARG,             /* value */
	TPL_ARG_KEYWORD,     /* value                                                       name */
	TPL_ARG_LIST,        /* value of *x */
	TPL_ARG_DICT,        /* value of **x */
	/* assignment targets: NAME, TUPLE_OF, and */
	TPL_NS_TARGET,       /* the namespace (a NAME)                                      name */
	/* statements */
	TPL_OUTPUT,          /*                                     expressions */
	TPL_IF,              /* test                                body                    other: else or elif */
	TPL_FOR,             /* target       iterable    filter     body                    other: else */
	TPL_SET,             /* target       value */
	TPL_SET_BLOCK,       /* target       value over CAPTURED    body */
	TPL_FILTER_BLOCK,    /* value over CAPTURED                 body */
	TPL_WITH,            /*                                     body                    other: target, value, target, ... */
	TPL_SCOPE,           /*                                     body (generation) */
	TPL_MACRO_DEF,       /*                                     body                    name; other: parameters */
	TPL_PARAMETER,       /* default or NULL                                             name */
	TPL_BREAK,
	TPL_CONTINUE,
};

struct tpl_node {
	enum tpl_node_kind kind;
	int line, op;
	bool takes_rest;       /* MACRO_DEF: its body names `varargs` or `kwargs` */
	struct tpl_node *next; /* in the list it stands in */
	struct tpl_node *all;  /* the node made before it: a walk without recursion */
	struct tpl_node *a, *b, *c, *list, *other;
	const struct tpl_string *name;
	struct tpl_value constant;
};

/* Parses into the run's memory. *last is the newest node (see `all`). Errors have the line in run->line. */
enum status tpl_parse(struct tpl_run *run, const char *source, size_t n, struct tpl_node **body, struct tpl_node **last) NODISCARD;

#endif
