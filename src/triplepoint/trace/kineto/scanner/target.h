/* Compile for AVX2, which module.c makes sure of, where there is any.

   Not for its width: the C library copies with wide registers, and code compiled without AVX pays for each switch. It
   makes scanning a third faster. To be included first. */
#ifdef __x86_64__
#pragma GCC target("avx2")
#endif
