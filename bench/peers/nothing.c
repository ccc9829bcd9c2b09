/* nothing.c: the floor under a program's start: a process without any library. */
int main(void)
{
	return 0;
}
