/* Compile for AVX2 on x86-64; module.c checks that the processor has it. Include this file first.

   The reason is not the width of AVX2: the C library copies with wide registers, and code without AVX pays for each
   switch. Scanning becomes a third faster. */
#ifdef __x86_64__
#pragma GCC target("avx2")
#endif
